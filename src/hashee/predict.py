"""Scoring any number of texts: tokenized in bulk, batched by what they will cost, answered in order."""

from collections.abc import Iterable, Iterator, Sized
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm  # type: ignore[import-untyped]

from hashee.errors import InputError, UnsupportedModel
from hashee.texts import Text, read_texts


@dataclass(frozen=True)
class Batching:
    """How texts are grouped before they run.

    tokens: real tokens of a batch at the most; a longer text is a batch of its own.
    active: tokens that a batch should keep in the last layers, so that they still feed the processor; a batch grows up
    to four times `tokens` for it.
    window: texts that are read, sorted and answered together; memory is bounded by it, whatever the number of texts.
    """

    tokens: int = 2048
    active: int = 256
    window: int = 4096

    def __post_init__(self) -> None:
        if min(self.tokens, self.window) < 1 or self.active < 0:
            raise InputError(f"batches need at least one token and one text, not {self}")


@dataclass(frozen=True)
class _Window:
    """Some consecutive texts, tokenized, with the batches that they run in."""

    encodings: dict[str, list[list[int]]]
    batches: list[list[int]]

    def __len__(self) -> int:
        return len(self.encodings["input_ids"])


def predict(
    model: Any, texts: Iterable[Text] | str | Path, tokenizer: Any, batching: Batching, progress: bool
) -> Iterator[NDArray[Any]]:
    """Yield the answer to each text in order, see `HashedModel.predict`."""
    if model.config.is_encoder_decoder:
        raise UnsupportedModel(f"{type(model).__name__} writes text; call generate() instead of predict()")
    source = read_texts(texts) if isinstance(texts, str | Path) else texts
    total = len(source) if isinstance(source, Sized) else None
    windows = _windows(iter(source), model, tokenizer, batching)
    bar = tqdm(total=total, desc="predicting", unit=" texts", disable=None if progress else True)
    with ThreadPoolExecutor(max_workers=1) as ahead, bar:
        # The next window is tokenized while this one is computed.
        coming = ahead.submit(next, windows, None)
        while (window := coming.result()) is not None:
            coming = ahead.submit(next, windows, None)
            answers: list[NDArray[Any]] = [np.empty(0)] * len(window)
            for batch in window.batches:
                for place, answer in zip(batch, _run(model, window, batch, tokenizer), strict=True):
                    answers[place] = answer
                bar.update(len(batch))
            yield from answers


def _windows(texts: Iterator[Text], model: Any, tokenizer: Any, batching: Batching) -> Iterator[_Window]:
    """Tokenize and batch the texts, a window at a time."""
    length = min(model.adapter.max_length(model.config), tokenizer.model_max_length)
    exit_layers = model.exit_table.exit_layers.numpy()
    while rows := list(islice(texts, batching.window)):
        for row in rows:
            if not (isinstance(row, str) or (isinstance(row, tuple | list) and len(row) == 2)):
                raise InputError(f"texts must be strings or pairs of strings, not {type(row).__name__}")
        singles = all(isinstance(row, str) for row in rows)
        if not singles and any(isinstance(row, str) for row in rows):
            raise InputError("texts must be all single or all pairs")
        columns = (rows,) if singles else ([row[0] for row in rows], [row[1] for row in rows])
        encodings = tokenizer(
            *columns,
            truncation=True,
            max_length=length,
            return_attention_mask=False,
            # Some tokenizers (ALBERT's) leave the types out even where the model was trained with them.
            return_token_type_ids=model.adapter.token_types,
            verbose=False,
        )
        yield _Window(dict(encodings), make_batches(encodings["input_ids"], exit_layers, batching))


def make_batches(ids: list[list[int]], exit_layers: NDArray[np.int64], batching: Batching) -> list[list[int]]:
    """Group texts of like length and cost; each batch lists the places of its texts.

    exit_layers: (vocabulary,) exit layer of every token id.
    """
    deepest = exit_layers.max()
    lengths = np.array([len(row) for row in ids])
    # The cost of a text is known before it runs: its length, and how many of its tokens stay to the end.
    staying = np.array([int((exit_layers[row] == deepest).sum()) for row in ids])
    batches: list[list[int]] = []
    batch: list[int] = []
    tokens = active = 0
    # Longest first: whatever does not fit in memory fails at once, not after an hour.
    for place in np.lexsort((staying, lengths))[::-1].tolist():
        full = tokens + lengths[place] > batching.tokens and active >= batching.active
        if batch and (full or tokens + lengths[place] > 4 * batching.tokens):
            batches.append(batch)
            batch, tokens, active = [], 0, 0
        batch.append(place)
        tokens += int(lengths[place])
        active += int(staying[place])
    return [*batches, batch] if batch else batches


def _run(model: Any, window: _Window, batch: list[int], tokenizer: Any) -> list[NDArray[Any]]:
    """Return the answers to one batch, without those of padding positions."""
    rows = {name: [values[place] for place in batch] for name, values in window.encodings.items()}
    lengths = [len(row) for row in rows["input_ids"]]
    padding = {"input_ids": tokenizer.pad_token_id or 0}
    inputs = {name: _padded(values, padding.get(name, 0), model.device) for name, values in rows.items()}
    inputs["attention_mask"] = _padded([[1] * length for length in lengths], 0, model.device)
    with torch.inference_mode():
        output = model(**inputs)
    return [answer[:length] if per_token else answer for answer, length, per_token in _answers(output, lengths)]


def _answers(output: Any, lengths: list[int]) -> Iterator[tuple[NDArray[Any], int, bool]]:
    """Yield what the head says of each text, and whether it says it of every token."""
    if "logits" in output:
        values = output.logits
    elif "start_logits" in output:
        values = torch.stack([output.start_logits, output.end_logits], dim=-1)
    else:
        values = output.last_hidden_state
    for value, length in zip(values.float().cpu().numpy(), lengths, strict=True):
        yield value, length, value.ndim == 2


def _padded(rows: list[list[int]], value: int, device: Any) -> Tensor:
    """Return lists of different lengths as one (rows, longest) tensor."""
    longest = max(map(len, rows))
    array = np.full((len(rows), longest), value, dtype=np.int64)
    for number, row in enumerate(rows):
        array[number, : len(row)] = row
    return torch.from_numpy(array).to(device)
