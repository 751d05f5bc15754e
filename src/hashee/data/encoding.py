"""From the examples of a task to token ids and targets, and from some of them to a padded batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hashee.data.task import Examples, Kind, Task
from hashee.data.types import TASK_TYPES
from hashee.errors import InputError

Array = NDArray[Any]
_CHUNK = 1024


@dataclass(frozen=True)
class Encoded:
    """One split of a task, tokenized."""

    ids: list[Array]
    """Token ids of each example, special tokens included."""
    types: list[Array] | None
    """Token types of each example, for families that have them."""
    targets: Array | list[Array] | None
    """(examples,) classes or scores, (examples, labels) whether each applies, or for each example its words' tags."""
    starts: list[Array] | None
    """For tags: where the first token of each word is; -1 for a word that was cut off or has no token."""
    padding: int
    """Token id at padding positions."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each example: (examples,)."""
        return np.array([len(row) for row in self.ids], dtype=np.int64)

    @property
    def items(self) -> NDArray[np.int64]:
        """How many answers each example counts for in the loss: one, or one for each tagged word: (examples,)."""
        if self.starts is None:
            return np.ones(len(self), dtype=np.int64)
        return np.array([int((row >= 0).sum()) for row in self.starts], dtype=np.int64)

    def inputs(self, places: Sequence[int]) -> dict[str, Tensor]:
        """Return some examples as a model takes them, each (examples, longest)."""
        rows = [self.ids[place] for place in places]
        batch = {
            "input_ids": _padded(rows, self.padding),
            "attention_mask": _padded([np.ones_like(row) for row in rows], 0),
        }
        if self.types is not None:
            batch["token_type_ids"] = _padded([self.types[place] for place in places], 0)
        return batch

    def answers(self, places: Sequence[int]) -> Tensor:
        """Return the targets of some examples: (examples,), (examples, labels), or for tags (tagged words,)."""
        if self.targets is None:
            raise InputError("these examples have no labels, so nothing can be learnt from them")
        if self.starts is None:
            return torch.from_numpy(np.asarray([self.targets[place] for place in places]))
        kept = [self.targets[place][self.starts[place] >= 0] for place in places]
        return torch.from_numpy(np.concatenate(kept).astype(np.int64))

    def word_rows(self, places: Sequence[int]) -> Tensor | None:
        """For tags: where the tagged words are in the flattened (examples * longest) batch; (tagged words,)."""
        if self.starts is None:
            return None
        longest = max(len(self.ids[place]) for place in places)
        rows = [number * longest + self.starts[place] for number, place in enumerate(places)]
        kept = [row[self.starts[place] >= 0] for row, place in zip(rows, places, strict=True)]
        return torch.from_numpy(np.concatenate(kept).astype(np.int64))


@dataclass(frozen=True)
class Encoder:
    """How the examples of a task are tokenized for a model."""

    task: Task
    tokenizer: Any
    max_length: int
    token_types: bool
    """Whether the model reads token types."""

    def __call__(self, examples: Examples) -> Encoded:
        """Tokenize one split."""
        if self.task.kind is Kind.TAGS and not getattr(self.tokenizer, "is_fast", False):
            raise InputError("tagging needs a fast tokenizer, which knows where each token comes from; this one is not")
        ids: list[Array] = []
        types: list[Array] = []
        starts: list[Array] = []
        for first in range(0, len(examples), _CHUNK):
            rows = list(examples.texts[first : first + _CHUNK])
            encodings = self._tokenized(rows)
            ids += [np.asarray(row, dtype=np.int32) for row in encodings["input_ids"]]
            if self.token_types:
                types += [np.asarray(row, dtype=np.int32) for row in encodings["token_type_ids"]]
            if self.task.kind is Kind.TAGS:
                starts += map(_word_starts, rows, encodings["offset_mapping"])
        return Encoded(
            ids=ids,
            types=types if self.token_types else None,
            targets=None if examples.targets is None else self._targets(examples.targets),
            starts=starts if self.task.kind is Kind.TAGS else None,
            padding=self.tokenizer.pad_token_id or 0,
        )

    def _tokenized(self, rows: list[Any]) -> Any:
        columns: tuple[list[Any], ...] = (rows,)
        if self.task.kind is Kind.TAGS:
            # As ordinary text: that is what exit tables are counted on, and what users give the fitted model.
            columns = ([" ".join(words) for words in rows],)
        elif self.task.pair:
            columns = ([row[0] for row in rows], [row[1] for row in rows])
        return self.tokenizer(
            *columns,
            return_offsets_mapping=self.task.kind is Kind.TAGS,
            truncation=True,
            max_length=self.max_length,
            return_attention_mask=False,
            # Some tokenizers (ALBERT's) leave the types out even where the model was trained with them.
            return_token_type_ids=self.token_types,
            verbose=False,
        )

    def _targets(self, targets: Sequence[Any]) -> Array | list[Array]:
        return TASK_TYPES[self.task.kind].targets(targets)


def _word_starts(words: Sequence[str], spans: Sequence[tuple[int, int]]) -> Array:
    """Return the place of the first token of each word among those of `" ".join(words)`, -1 if it has none: (words,).

    spans: where each token begins and ends in the text, in characters; (0, 0) for special tokens.
    """
    word_at: list[int | None] = []
    for number, word in enumerate(words):
        word_at += [number] * len(word) + [None]
    starts = np.full(len(words), -1, dtype=np.int64)
    for place in range(len(spans) - 1, -1, -1):
        # A span may begin with the space before the word.
        found = next((number for number in word_at[slice(*spans[place])] if number is not None), None)
        if found is not None:
            starts[found] = place
    return starts


def _padded(rows: Sequence[Array], value: int) -> Tensor:
    array = np.full((len(rows), max(map(len, rows))), value, dtype=np.int64)
    for number, row in enumerate(rows):
        array[number, : len(row)] = row
    return torch.from_numpy(array)
