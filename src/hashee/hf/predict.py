"""Scoring any number of texts: tokenized in bulk, batched by cost, outputs in the order of the texts."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm  # type: ignore[import-untyped]

from hashee.data.batching import Batching, IdRow, Integers, make_batches, padded_inputs
from hashee.data.texts import Text, read_texts
from hashee.data.tokenizing import TextTokenizer
from hashee.errors import InputError


@dataclass(frozen=True)
class Scorer:
    """A function that runs batches, on any runtime, and what must be known to make them."""

    run: Callable[[dict[str, Integers]], NDArray[Any]]
    """From arrays (batch, length) by name to outputs (batch, ...)."""
    max_length: int
    token_types: bool
    exit_layers: Integers | None
    """(vocabulary,) to know the cost of texts before they run; without it they are batched by length alone."""


@dataclass(frozen=True)
class _Window:
    """Some consecutive texts, tokenized, with the batches that they run in."""

    columns: dict[str, list[list[int]]]
    """`input_ids`, and `token_type_ids` where the model has them."""
    batches: list[list[int]]
    """Indices of the texts of each batch."""

    def __len__(self) -> int:
        return len(self.columns["input_ids"])


def predict(
    scorer: Scorer, texts: Iterable[Text] | str | Path, tokenizer: Any, batching: Batching, progress: bool
) -> Iterator[NDArray[Any]]:
    """Yield the output for each text in order, see `HashedModel.predict`."""
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
    """Return the outputs for a list of texts in order, see `HashedModel.predict_batch`."""
    if isinstance(texts, str | Path):
        raise InputError(
            f"predict_batch takes a list of texts, not {type(texts).__name__}; pass [text], or use predict"
        )
    outputs: list[NDArray[Any]] = []
    for window in _windows(iter(texts), scorer, tokenizer, batching):
        outputs += _run_window(scorer, window, tokenizer, lambda texts: None)
    return outputs


def _run_window(scorer: Scorer, window: _Window, tokenizer: Any, report: Callable[[int], Any]) -> list[NDArray[Any]]:
    """Return the outputs for the texts of a window in order. report: called with the number of texts of each batch."""
    outputs: list[NDArray[Any]] = [np.empty(0)] * len(window)
    for batch in window.batches:
        for index, output in zip(batch, run_batch(scorer, window.columns, batch, tokenizer.pad_token_id), strict=True):
            outputs[index] = output
        report(len(batch))
    return outputs


def _windows(texts: Iterator[Text], scorer: Scorer, tokenizer: Any, batching: Batching) -> Iterator[_Window]:
    """Tokenize and batch the texts, a window at a time."""
    tokenize = TextTokenizer.within(tokenizer, scorer.max_length, scorer.token_types)
    first = 0
    while rows := list(islice(texts, batching.window)):
        columns = tokenize(rows, first)
        first += len(rows)
        yield _Window(columns, make_batches(columns["input_ids"], scorer.exit_layers, batching))


def run_batch(
    scorer: Scorer, columns: Mapping[str, Sequence[IdRow]], batch: Sequence[int], pad_id: int | None
) -> list[NDArray[Any]]:
    """Return the outputs of one batch, without those at padding positions.

    columns: `input_ids`, and `token_type_ids` where the model has them, of all texts. batch: indices of its texts.
    """
    outputs = scorer.run(padded_inputs(columns, batch, pad_id))
    lengths = [len(columns["input_ids"][index]) for index in batch]
    return [output[:length] if output.ndim == 2 else output for output, length in zip(outputs, lengths, strict=True)]


def run_in_torch(model: Any, arrays: dict[str, Integers]) -> NDArray[Any]:
    """Run a model, dense or converted, on a batch. arrays: (batch, length) by name. Returns (batch, ...)."""
    with torch.inference_mode():
        output = model(**{name: torch.from_numpy(array).to(model.device) for name, array in arrays.items()})
    array: NDArray[Any] = main_output(output).float().cpu().numpy()
    return array


def main_output(output: Any) -> Any:
    """Return the logits or embeddings in a model's output, or the last hidden states if it has no head: (batch, ...).

    output: tensors or arrays by name. Logits of spans are stacked: (batch, length, 2).
    """
    for name in ("logits", "sentence_embedding"):
        if name in output:
            return output[name]
    if "start_logits" in output:
        both = (output["start_logits"], output["end_logits"])
        return torch.stack(both, dim=-1) if isinstance(both[0], torch.Tensor) else np.stack(both, axis=-1)
    return output["last_hidden_state"]
