"""Scoring any number of texts: tokenized in bulk, batched by what they will cost, answered in order."""

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm  # type: ignore[import-untyped]

from hashee.data.batching import Batching, Integers, make_batches, padded
from hashee.data.texts import Text, read_texts, text_columns
from hashee.errors import InputError


@dataclass(frozen=True)
class Scorer:
    """What answers batches, on whatever runtime, and what must be known to make them."""

    run: Callable[[dict[str, Integers]], NDArray[Any]]
    """From arrays (batch, length) by name to answers (batch, ...)."""
    max_length: int
    token_types: bool
    exit_layers: Integers | None
    """(vocabulary,) to know the cost of texts before they run; without it they are batched by length alone."""


@dataclass(frozen=True)
class _Window:
    """Some consecutive texts, tokenized, with the batches that they run in."""

    encodings: dict[str, list[list[int]]]
    batches: list[list[int]]

    def __len__(self) -> int:
        return len(self.encodings["input_ids"])


def predict(
    scorer: Scorer, texts: Iterable[Text] | str | Path, tokenizer: Any, batching: Batching, progress: bool
) -> Iterator[NDArray[Any]]:
    """Yield the answer to each text in order, see `HashedModel.predict`."""
    source = read_texts(texts) if isinstance(texts, str | Path) else texts
    total = len(source) if isinstance(source, Sized) else None
    windows = _windows(iter(source), scorer, tokenizer, batching)
    bar = tqdm(total=total, desc="predicting", unit=" texts", disable=None if progress else True)
    with ThreadPoolExecutor(max_workers=1) as ahead, bar:
        # The next window is tokenized while this one is computed.
        coming = ahead.submit(next, windows, None)
        while (window := coming.result()) is not None:
            coming = ahead.submit(next, windows, None)
            yield from _run_window(scorer, window, tokenizer, bar.update)


def predict_batch(scorer: Scorer, texts: Sequence[Text], tokenizer: Any, batching: Batching) -> list[NDArray[Any]]:
    """Return the answers to a list of texts in order, see `HashedModel.predict_batch`."""
    if isinstance(texts, str | Path):
        raise InputError(
            f"predict_batch takes a list of texts, not {type(texts).__name__}; pass [text], or use predict"
        )
    answers: list[NDArray[Any]] = []
    for window in _windows(iter(texts), scorer, tokenizer, batching):
        answers += _run_window(scorer, window, tokenizer, lambda texts: None)
    return answers


def _run_window(scorer: Scorer, window: _Window, tokenizer: Any, report: Callable[[int], Any]) -> list[NDArray[Any]]:
    """Return the answers to the texts of a window in order. report: told how many texts each batch has answered."""
    answers: list[NDArray[Any]] = [np.empty(0)] * len(window)
    for batch in window.batches:
        for index, answer in zip(batch, _run(scorer, window, batch, tokenizer), strict=True):
            answers[index] = answer
        report(len(batch))
    return answers


def _windows(texts: Iterator[Text], scorer: Scorer, tokenizer: Any, batching: Batching) -> Iterator[_Window]:
    """Tokenize and batch the texts, a window at a time."""
    first = 0
    while rows := list(islice(texts, batching.window)):
        encodings = tokenizer(
            *text_columns(rows, first),
            truncation=True,
            max_length=min(scorer.max_length, tokenizer.model_max_length),
            return_attention_mask=False,
            # Some tokenizers (ALBERT's) leave the types out even where the model was trained with them.
            return_token_type_ids=scorer.token_types,
            verbose=False,
        )
        first += len(rows)
        yield _Window(dict(encodings), make_batches(encodings["input_ids"], scorer.exit_layers, batching))


def _run(scorer: Scorer, window: _Window, batch: list[int], tokenizer: Any) -> list[NDArray[Any]]:
    """Return the answers to one batch, without those of padding positions."""
    rows = {name: [values[place] for place in batch] for name, values in window.encodings.items()}
    lengths = [len(row) for row in rows["input_ids"]]
    arrays = {name: padded(values, 0) for name, values in rows.items()}
    arrays["input_ids"] = padded(rows["input_ids"], tokenizer.pad_token_id or 0)
    arrays["attention_mask"] = padded([[1] * length for length in lengths], 0)
    answers = scorer.run(arrays)
    return [answer[:length] if answer.ndim == 2 else answer for answer, length in zip(answers, lengths, strict=True)]


def run_in_torch(model: Any, arrays: dict[str, Integers]) -> NDArray[Any]:
    """Let a model, dense or converted, answer a batch. arrays: (batch, length) by name. Returns (batch, ...)."""
    with torch.inference_mode():
        output = model(**{name: torch.from_numpy(array).to(model.device) for name, array in arrays.items()})
    answers: NDArray[Any] = answers_in(output).float().cpu().numpy()
    return answers


def answers_in(output: Any) -> Any:
    """Return the part of a model's output, by name, that answers the texts: (batch, ...), tensor or array."""
    if "logits" in output:
        return output["logits"]
    if "start_logits" in output:
        both = (output["start_logits"], output["end_logits"])
        return torch.stack(both, dim=-1) if isinstance(both[0], torch.Tensor) else np.stack(both, axis=-1)
    return output["last_hidden_state"]
