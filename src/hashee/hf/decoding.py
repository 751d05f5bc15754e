"""From a model's answers to what people read: labels with scores, tags of words, a score, or the states themselves."""

import re
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hashee.data.texts import Text
from hashee.errors import HasheeError, InputError, UnsupportedModel

Array: TypeAlias = NDArray[Any]
Decode: TypeAlias = Callable[[Text, Array], dict[str, Any]]
"""From a text and the answer to it, as `predict` yields it, to JSON values."""

_WORD = re.compile(r"\S+")


def decoder_for(model_class: str, config: Any, tokenizer: Any) -> Decode:
    """Return how the answers of a model are read. model_class: the name of its class, converted or not."""
    if model_class.endswith(("ForSequenceClassification", "ForNextSentencePrediction")):
        decode = _sequence_decoder(config)
    elif model_class.endswith("ForTokenClassification"):
        decode = _tag_decoder(_label_names(config), tokenizer)
    elif model_class.endswith("Model"):
        decode = _decode_states
    else:
        raise UnsupportedModel(
            f"{model_class} gives neither labels, scores, tags nor states; use the transformers pipeline for its task"
        )
    return lambda text, answer: decode(text, _finite(answer))


def _finite(answer: Array) -> Array:
    if not np.isfinite(answer).all():
        raise HasheeError("the model answers with numbers that are not finite; its weights are damaged or overflow")
    return answer.astype(np.float64)


def _label_names(config: Any) -> list[str]:
    return [str(config.id2label[number]) for number in range(config.num_labels)]


def _sequence_decoder(config: Any) -> Decode:
    """Return how logits (labels,) of a text are read, which a config says as transformers' own heads read it."""
    names = _label_names(config)
    problem = config.problem_type or ("regression" if config.num_labels == 1 else None)
    if problem == "regression":
        if len(names) == 1:
            return lambda text, logits: {"score": _rounded(logits[0])}
        return lambda text, logits: {"scores": dict(zip(names, map(_rounded, logits), strict=True))}
    if problem == "multi_label_classification":
        return lambda text, logits: _applying(names, _sigmoid(logits))
    return lambda text, logits: _best(names, _softmax(logits))


def _best(names: list[str], shares: Array) -> dict[str, Any]:
    best = int(shares.argmax())
    scores = dict(zip(names, map(_rounded, shares), strict=True))
    return {"label": names[best], "score": _rounded(shares[best]), "scores": scores}


def _applying(names: list[str], shares: Array) -> dict[str, Any]:
    scores = dict(zip(names, map(_rounded, shares), strict=True))
    return {"labels": [name for name, share in zip(names, shares, strict=True) if share > 0.5], "scores": scores}


def _tag_decoder(names: list[str], tokenizer: Any) -> Decode:
    """Return how logits (tokens, tags) are read: a word, up to the next space, has the tag of its first token."""
    if not getattr(tokenizer, "is_fast", False):
        raise InputError("tagging needs a fast tokenizer, which knows where each token comes from; this one is not")

    def decode(text: Text, logits: Array) -> dict[str, Any]:
        if not isinstance(text, str):
            raise InputError("taggers read single texts, not pairs; leave out --pair-column")
        encoded = tokenizer(
            text, truncation=True, max_length=len(logits), return_offsets_mapping=True, return_special_tokens_mask=True
        )
        places = [
            (start, end, number)
            for number, (start, end) in enumerate(encoded["offset_mapping"])
            if end > start and not encoded["special_tokens_mask"][number]
        ]
        shares = _softmax(logits)
        words, tags, scores = [], [], []
        next_place = 0
        for word in _WORD.finditer(text):
            while next_place < len(places) and places[next_place][1] <= word.start():
                next_place += 1
            # A word that was cut off, or that the tokenizer drops, has no token.
            has_token = next_place < len(places) and places[next_place][0] < word.end()
            row = shares[places[next_place][2]] if has_token else None
            words.append(word.group())
            tags.append(None if row is None else names[int(row.argmax())])
            scores.append(None if row is None else _rounded(row.max()))
        return {"words": words, "tags": tags, "scores": scores}

    return decode


def _decode_states(text: Text, states: Array) -> dict[str, Any]:
    """Return the state of every token, special tokens included: (tokens, width)."""
    return {"states": states.round(7).tolist()}


def _softmax(logits: Array) -> Array:
    """Return the shares of the last axis."""
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def _sigmoid(logits: Array) -> Array:
    return np.asarray(np.exp(-np.logaddexp(0, -logits)))


def _rounded(number: float) -> float:
    """Return a number with as many digits as float32 has."""
    return float(f"{number:.7g}")
