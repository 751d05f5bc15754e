"""Token ids in batches: drawing texts, ordering and cutting them, padding; the same for every peer. Only numpy."""

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
class Tokens:
    """Texts as token ids with special tokens, and their token types, in arrival order."""

    ids: tuple[tuple[int, ...], ...]
    types: tuple[tuple[int, ...], ...]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def lengths(self) -> list[int]:
        """Tokens of each text."""
        return [len(ids) for ids in self.ids]

    def take(self, places: Sequence[int]) -> "Tokens":
        """Return the texts at these places, in that order."""
        return Tokens(tuple(self.ids[place] for place in places), tuple(self.types[place] for place in places))

    def save(self, path: Path) -> None:
        """Write the texts as JSON."""
        path.write_text(json.dumps({"ids": self.ids, "types": self.types}), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> "Tokens":
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


def draw(tokens: Tokens, count: int, batch_size: int, seed: int) -> Tokens:
    """Draw about `count` texts, in whole batches, and shuffle them into an arrival order.

    All texts are sorted by length and cut into batches, of which evenly spaced ones are taken. A length-sorted peer
    thus gets batches as uniform as if it had sorted all the texts, which a small random sample would deny it.
    """
    order = sorted(range(len(tokens)), key=lambda place: len(tokens.ids[place]))
    size = min(batch_size, len(order))
    available = len(order) // size
    wanted = min(max(1, -(-count // size)), available)
    chosen = [int((number + 0.5) * available / wanted) for number in range(wanted)]
    places = [order[start * size + offset] for start in chosen for offset in range(size)]
    random.Random(seed).shuffle(places)
    return tokens.take(places)


def cut(tokens: Tokens, batch_size: int, order: str) -> list[list[int]]:
    """Return the places of the texts of every batch, in the order in which a peer runs them."""
    places = list(range(len(tokens)))
    if order == SORTED:
        places.sort(key=lambda place: len(tokens.ids[place]))
    return [places[start : start + batch_size] for start in range(0, len(places), batch_size)]


def pad(tokens: Tokens, places: Sequence[int], padding_id: int = 0) -> Padded:
    """Lay some texts out as one padded batch."""
    length = max(len(tokens.ids[place]) for place in places)
    ids = np.full((len(places), length), padding_id, dtype=np.int64)
    mask, types = np.zeros_like(ids), np.zeros_like(ids)
    for row, place in enumerate(places):
        size = len(tokens.ids[place])
        ids[row, :size] = tokens.ids[place]
        mask[row, :size] = 1
        types[row, :size] = tokens.types[place]
    return Padded(ids, mask, types)
