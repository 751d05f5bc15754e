"""From the examples of a task to token ids and targets, and from some of them to a padded batch."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hashee.data.batching import padded_inputs
from hashee.data.task import Examples, Task
from hashee.data.task_types import type_of
from hashee.data.tokenizing import TextTokenizer
from hashee.errors import InputError

Array = NDArray[Any]
_CHUNK = 1024


@dataclass(frozen=True)
class Tokenized:
    """The examples of a split, tokenized."""

    ids: list[Array]
    """Token ids of each example, special tokens included."""
    types: list[Array] | None
    """Token types of each example, for families that have them."""
    targets: Array | list[Array] | None
    """(examples,) classes or scores, (examples, labels) 0 or 1 for each label, or for each example its words' tags."""
    starts: list[Array] | None
    """For tags: index of the first token of each word; -1 for a word that was truncated or has no token."""
    padding: int
    """Token id at padding positions."""
    labelled: int | None = None
    """Only the first so many examples have targets; None where all of them do, or none."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each example: (examples,)."""
        return np.array([len(row) for row in self.ids], dtype=np.int64)

    @property
    def items(self) -> NDArray[np.int64]:
        """How many predictions each example counts for in the loss: one, or one for each tagged word: (examples,)."""
        if self.starts is None:
            return np.ones(len(self), dtype=np.int64)
        return np.array([int((row >= 0).sum()) for row in self.starts], dtype=np.int64)

    def with_unlabelled(self, others: "Tokenized") -> "Tokenized":
        """Return these examples, which have targets, and after them others without."""
        if self.targets is None or others.targets is not None or self.labelled is not None:
            raise InputError("examples without labels are added to examples with labels, once")
        return replace(
            self,
            ids=self.ids + others.ids,
            types=None if self.types is None else self.types + (others.types or []),
            starts=None if self.starts is None else self.starts + (others.starts or []),
            labelled=len(self),
        )

    def is_labelled(self, indices: Sequence[int]) -> Tensor | None:
        """Return which predictions for some examples have a target, (predictions,); None if all have."""
        if self.labelled is None:
            return None
        rows = np.array([index < self.labelled for index in indices])
        return torch.from_numpy(rows.repeat(self.items[list(indices)]))

    def inputs(self, indices: Sequence[int]) -> dict[str, Tensor]:
        """Return some examples as a model takes them, each (examples, longest)."""
        columns = {"input_ids": self.ids} | ({} if self.types is None else {"token_type_ids": self.types})
        arrays = padded_inputs(columns, indices, self.padding)
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def training_inputs(self, indices: Sequence[int]) -> dict[str, Tensor]:
        """Return some examples as a model takes them to learn from, with what it shall write if it writes text."""
        return self.inputs(indices)

    def batch_targets(self, indices: Sequence[int]) -> Tensor:
        """Return the targets of those examples that have any: (examples,), (examples, labels), or for tags (words,)."""
        if self.targets is None:
            raise InputError("these examples have no labels, so nothing can be learnt from them")
        if self.labelled is not None:
            indices = [index for index in indices if index < self.labelled]
            if not indices:
                return torch.from_numpy(np.asarray(self.targets[0])[None][:0])
        if self.starts is None:
            return torch.from_numpy(np.asarray([self.targets[index] for index in indices]))
        kept = [self.targets[index][self.starts[index] >= 0] for index in indices]
        return torch.from_numpy(np.concatenate(kept).astype(np.int64))

    def word_rows(self, indices: Sequence[int]) -> Tensor | None:
        """For tags: where the tagged words are in the flattened (examples * longest) batch; (tagged words,)."""
        if self.starts is None:
            return None
        longest = max(len(self.ids[index]) for index in indices)
        rows = [number * longest + self.starts[index] for number, index in enumerate(indices)]
        kept = [row[self.starts[index] >= 0] for row, index in zip(rows, indices, strict=True)]
        return torch.from_numpy(np.concatenate(kept).astype(np.int64))

    def word_logits(self, index: int, logits: Array) -> Array:
        """Pick the logits of each tagged word's first token, NaN for a word without; those of texts stay as they are.

        logits: (tokens, labels) of one example, or (labels,). Returns (words, labels), or (labels,).
        """
        if self.starts is None:
            return logits
        starts = self.starts[index]
        picked = np.full((len(starts), logits.shape[1]), np.nan, dtype=np.float32)
        picked[starts >= 0] = logits[starts[starts >= 0]]
        return picked


@dataclass(frozen=True)
class ExampleTokenizer:
    """Tokenizes the examples of a task for a model."""

    task: Task
    tokenizer: Any
    max_length: int
    token_types: bool
    """Whether the model reads token types."""

    def __call__(self, examples: Examples) -> Tokenized:
        """Tokenize one split."""
        task_type = type_of(self.task)
        tags = task_type.tags_words
        if tags and not getattr(self.tokenizer, "is_fast", False):
            raise InputError("tagging needs a fast tokenizer, which knows where each token comes from; this one is not")
        tokenize = TextTokenizer(self.tokenizer, self.max_length, self.token_types, offsets=tags)
        ids: list[Array] = []
        types: list[Array] = []
        starts: list[Array] = []
        for first in range(0, len(examples), _CHUNK):
            rows = examples.texts[first : first + _CHUNK]
            columns = tokenize([task_type.text(row) for row in rows], first)
            ids += [np.asarray(row, dtype=np.int32) for row in columns["input_ids"]]
            if self.token_types:
                types += [np.asarray(row, dtype=np.int32) for row in columns["token_type_ids"]]
            if tags:
                starts += map(_word_starts, rows, columns["offset_mapping"])
        return Tokenized(
            ids=ids,
            types=types if self.token_types else None,
            targets=None if examples.targets is None else task_type.targets(examples.targets),
            starts=starts if tags else None,
            padding=self.tokenizer.pad_token_id or 0,
        )


def tokenized_texts(tokenize: TextTokenizer, texts: Sequence[Any]) -> Tokenized:
    """Tokenize texts or pairs that belong to no task and have no targets."""
    ids: list[Array] = []
    types: list[Array] = []
    for first in range(0, len(texts), _CHUNK):
        columns = tokenize(texts[first : first + _CHUNK], first)
        ids += [np.asarray(row, dtype=np.int32) for row in columns["input_ids"]]
        types += [np.asarray(row, dtype=np.int32) for row in columns.get("token_type_ids", ())]
    return Tokenized(ids, types if tokenize.token_types else None, None, None, tokenize.tokenizer.pad_token_id or 0)


def _word_starts(words: Sequence[str], spans: Sequence[tuple[int, int]]) -> Array:
    """Return the index of the first token of each word among those of `" ".join(words)`, -1 if it has none: (words,).

    spans: where each token begins and ends in the text, in characters; (0, 0) for special tokens.
    """
    word_at: list[int | None] = []
    for number, word in enumerate(words):
        word_at += [number] * len(word) + [None]
    starts = np.full(len(words), -1, dtype=np.int64)
    for index in range(len(spans) - 1, -1, -1):
        # A span may begin with the space before the word.
        found = next((number for number in word_at[slice(*spans[index])] if number is not None), None)
        if found is not None:
            starts[found] = index
    return starts
