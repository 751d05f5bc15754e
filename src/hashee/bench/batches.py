"""Token ids in batches: texts are drawn, ordered, cut and padded alike for every baseline. Needs only numpy."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]

SORTED, ARRIVAL = "sorted", "arrival"


@dataclass(frozen=True)
class TokenizedTexts:
    """Texts as token ids with special tokens, and their token types, in arrival order."""

    ids: tuple[tuple[int, ...], ...]
    types: tuple[tuple[int, ...], ...]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def lengths(self) -> list[int]:
        """Tokens of each text."""
        return [len(ids) for ids in self.ids]

    def take(self, indices: Sequence[int]) -> "TokenizedTexts":
        """Return the texts with these indices, in that order."""
        return TokenizedTexts(
            tuple(self.ids[index] for index in indices), tuple(self.types[index] for index in indices)
        )

    def save(self, path: Path) -> None:
        """Write the texts as JSON."""
        path.write_text(json.dumps({"ids": self.ids, "types": self.types}), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> "TokenizedTexts":
        """Read what `save` wrote."""
        fields = json.loads(path.read_text(encoding="utf-8"))
        return cls(tuple(map(tuple, fields["ids"])), tuple(map(tuple, fields["types"])))


@dataclass(frozen=True)
class Padded:
    """One batch padded on the right; all (batch, length) int64."""

    input_ids: Ids
    attention_mask: Ids
    token_type_ids: Ids

    def named(self) -> dict[str, Ids]:
        """Return the arrays under the names that models take."""
        return {
            "input_ids": self.input_ids,
            "attention_mask": self.attention_mask,
            "token_type_ids": self.token_type_ids,
        }


def draw(tokens: TokenizedTexts, count: int, batch_size: int, seed: int) -> TokenizedTexts:
    """Draw about `count` texts, in whole batches, and shuffle them into an arrival order.

    All texts are sorted by length and cut into batches, of which evenly spaced ones are taken. A length-sorted baseline
    thus gets batches as uniform as if it had sorted all texts, which it would not from a small random sample.
    """
    order = sorted(range(len(tokens)), key=lambda index: len(tokens.ids[index]))
    size = min(batch_size, len(order))
    available = len(order) // size
    wanted = min(max(1, -(-count // size)), available)
    chosen = [int((number + 0.5) * available / wanted) for number in range(wanted)]
    indices = [order[start * size + offset] for start in chosen for offset in range(size)]
    random.Random(seed).shuffle(indices)
    return tokens.take(indices)


def cut(tokens: TokenizedTexts, batch_size: int, order: str) -> list[list[int]]:
    """Return the indices of the texts of every batch, in the order in which a baseline runs them."""
    indices = list(range(len(tokens)))
    if order == SORTED:
        indices.sort(key=lambda index: len(tokens.ids[index]))
    return [indices[start : start + batch_size] for start in range(0, len(indices), batch_size)]


def pad(tokens: TokenizedTexts, indices: Sequence[int], padding_id: int = 0) -> Padded:
    """Lay some texts out as one padded batch."""
    length = max(len(tokens.ids[index]) for index in indices)
    ids = np.full((len(indices), length), padding_id, dtype=np.int64)
    mask, types = np.zeros_like(ids), np.zeros_like(ids)
    for row, index in enumerate(indices):
        size = len(tokens.ids[index])
        ids[row, :size] = tokens.ids[index]
        mask[row, :size] = 1
        types[row, :size] = tokens.types[index]
    return Padded(ids, mask, types)
