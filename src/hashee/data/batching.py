"""From token ids to batches by cost, and from batches to padded arrays."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hashee.errors import InputError

Integers: TypeAlias = NDArray[np.int64]
IdRow: TypeAlias = Sequence[int] | NDArray[Any]
"""Token ids, or token types, of one text."""


@dataclass(frozen=True)
class Batching:
    """How texts are grouped before they run.

    tokens: tokens of a batch at most, without padding; a longer text is a batch of its own.
    active: tokens that a batch should keep in the last layers, so that they still feed the processor; a batch grows up
    to four times `tokens` for it.
    window: texts that are read, sorted and scored together; memory is bounded by it, whatever the number of texts.
    """

    tokens: int = 2048
    active: int = 256
    window: int = 4096

    def __post_init__(self) -> None:
        if min(self.tokens, self.window) < 1 or self.active < 0:
            raise InputError(f"batches need at least one token and one text, not {self}")


def make_batches(ids: list[list[int]], exit_layers: Integers | None, batching: Batching) -> list[list[int]]:
    """Group texts of similar length and cost; each batch lists the indices of its texts.

    exit_layers: (vocabulary,) exit layer of every token id, if it is known.
    """
    lengths = np.fromiter(map(len, ids), dtype=np.int64, count=len(ids))
    # The cost of a text is known before it runs: its length, and how many of its tokens stay to the end.
    staying = lengths
    if exit_layers is not None:
        all_ids = np.fromiter(chain.from_iterable(ids), dtype=np.int64, count=int(lengths.sum()))
        text_of_id = np.repeat(np.arange(len(ids)), lengths)
        staying = np.bincount(text_of_id[exit_layers[all_ids] == exit_layers.max()], minlength=len(ids))
    batches: list[list[int]] = []
    batch: list[int] = []
    tokens = active = 0
    # Longest first: a batch that does not fit in memory fails at once, not after an hour.
    for index in np.lexsort((staying, lengths))[::-1].tolist():
        full = tokens + lengths[index] > batching.tokens and active >= batching.active
        if batch and (full or tokens + lengths[index] > 4 * batching.tokens):
            batches.append(batch)
            batch, tokens, active = [], 0, 0
        batch.append(index)
        tokens += int(lengths[index])
        active += int(staying[index])
    return [*batches, batch] if batch else batches


def padded_inputs(
    columns: Mapping[str, Sequence[IdRow]], indices: Sequence[int], pad_id: int | None
) -> dict[str, Integers]:
    """Return some texts as a model takes them, padded on the right, with an attention mask: (texts, longest) each.

    columns: `input_ids`, and `token_type_ids` where the model has them, of all texts. pad_id: None pads with 0.
    """
    rows = {name: [values[index] for index in indices] for name, values in columns.items()}
    lengths = np.array([len(row) for row in rows["input_ids"]])
    inputs = {name: _padded(values, pad_id or 0 if name == "input_ids" else 0) for name, values in rows.items()}
    inputs["attention_mask"] = (np.arange(lengths.max()) < lengths[:, None]).astype(np.int64)
    return inputs


def _padded(rows: Sequence[IdRow], value: int) -> Integers:
    """Return rows of different lengths as one array: (rows, longest)."""
    array = np.full((len(rows), max(map(len, rows))), value, dtype=np.int64)
    for number, row in enumerate(rows):
        array[number, : len(row)] = row
    return array
