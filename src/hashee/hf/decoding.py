"""From a model's outputs to JSON values: labels with probabilities, tags of words, a score, or hidden states."""

import re
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hashee.data.texts import Text
from hashee.data.tokenizing import TextTokenizer
from hashee.errors import HasheeError, InputError, UnsupportedModel

Array: TypeAlias = NDArray[Any]
Decode: TypeAlias = Callable[[Text, Array], dict[str, Any]]
"""From a text and the output for it, as `predict` yields it, to JSON values."""

_WORD = re.compile(r"\S+")


def decoder_for(model_class: str, config: Any, tokenizer: Any) -> Decode:
    """Return a function that decodes the outputs of a model. model_class: the name of its class, converted or not."""
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
    return lambda text, output: decode(text, _finite(output))


def decode_embedding(text: Text, output: Array) -> dict[str, Any]:
    """Return an embedding as it is: (width,)."""
    _finite(output)
    return {"embedding": output.astype(np.float32)}


def decode_reranker(text: Text, output: Array) -> dict[str, Any]:
    """Return the score of a pair, or its scores: (scores,)."""
    numbers = [_rounded(number) for number in _finite(output)]
    return {"score": numbers[0]} if len(numbers) == 1 else {"scores": numbers}


def _finite(output: Array) -> Array:
    if not np.isfinite(output).all():
        raise HasheeError("the model's outputs are not finite; its weights are damaged or overflow")
    return output.astype(np.float64)


def _label_names(config: Any) -> list[str]:
    return [str(config.id2label[number]) for number in range(config.num_labels)]


def _sequence_decoder(config: Any) -> Decode:
    """Return a decoder of logits (labels,), by the problem type that transformers takes from a config."""
    names = _label_names(config)
    problem = config.problem_type or ("regression" if config.num_labels == 1 else None)
    if problem == "regression":
        if len(names) == 1:
            return lambda text, logits: {"score": _rounded(logits[0])}
        return lambda text, logits: {"scores": dict(zip(names, map(_rounded, logits), strict=True))}
    if problem == "multi_label_classification":
        return lambda text, logits: _labels_above_half(names, _sigmoid(logits))
    return lambda text, logits: _best_label(names, _softmax(logits))


def _best_label(names: list[str], probabilities: Array) -> dict[str, Any]:
    best = int(probabilities.argmax())
    scores = dict(zip(names, map(_rounded, probabilities), strict=True))
    return {"label": names[best], "score": _rounded(probabilities[best]), "scores": scores}


def _labels_above_half(names: list[str], probabilities: Array) -> dict[str, Any]:
    scores = dict(zip(names, map(_rounded, probabilities), strict=True))
    above = [name for name, probability in zip(names, probabilities, strict=True) if probability > 0.5]
    return {"labels": above, "scores": scores}


def _tag_decoder(names: list[str], tokenizer: Any) -> Decode:
    """Return a decoder of logits (tokens, tags): a word, up to the next space, has the tag of its first token."""
    if not getattr(tokenizer, "is_fast", False):
        raise InputError("tagging needs a fast tokenizer, which knows where each token comes from; this one is not")

    def decode(text: Text, logits: Array) -> dict[str, Any]:
        if not isinstance(text, str):
            raise InputError("taggers read single texts, not pairs; leave out --pair-column")
        (offsets,) = TextTokenizer(tokenizer, max_length=len(logits), offsets=True)([text])["offset_mapping"]
        # Special tokens stand for no part of the text: they begin and end at 0.
        spans = [(start, end, index) for index, (start, end) in enumerate(offsets) if end > start]
        probabilities = _softmax(logits)
        words, tags, scores = [], [], []
        following = 0
        for word in _WORD.finditer(text):
            while following < len(spans) and spans[following][1] <= word.start():
                following += 1
            # A word that was truncated, or that the tokenizer drops, has no token.
            has_token = following < len(spans) and spans[following][0] < word.end()
            row = probabilities[spans[following][2]] if has_token else None
            words.append(word.group())
            tags.append(None if row is None else names[int(row.argmax())])
            scores.append(None if row is None else _rounded(row.max()))
        return {"words": words, "tags": tags, "scores": scores}

    return decode


def _decode_states(text: Text, states: Array) -> dict[str, Any]:
    """Return the state of every token, special ones included: (tokens, width). An embedding stays one: (width,)."""
    if states.ndim == 1:
        return decode_embedding(text, states)
    return {"states": states.round(7).tolist()}


def _softmax(logits: Array) -> Array:
    """Return probabilities over the last axis."""
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def _sigmoid(logits: Array) -> Array:
    return np.asarray(np.exp(-np.logaddexp(0, -logits)))


def _rounded(number: float) -> float:
    """Return a number with as many digits as float32 has."""
    return float(f"{number:.7g}")
