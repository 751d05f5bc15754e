"""Documents and their summaries as token ids: what a model that writes text learns from, and how it shall write."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hashee.data.batching import padded_inputs
from hashee.data.task import Examples
from hashee.data.tokenized import ExampleTokenizer, Tokenized
from hashee.data.tokenizing import TextTokenizer
from hashee.data.writing import Writing
from hashee.errors import InputError


@dataclass(frozen=True)
class TokenizedSummaries(Tokenized):
    """The documents of a split, tokenized, with summaries as targets: the tokens of each, the end of text the last."""

    start_id: int = 0
    """What the decoder reads before the first token of a summary."""
    tokenizer: Any = field(default=None, repr=False)
    """To read what a model writes."""
    writing: Writing = field(default_factory=Writing)
    """How models write when they are judged on these documents."""

    @property
    def items(self) -> NDArray[np.int64]:
        """The tokens of each summary, all of which are predicted; without summaries 1: (examples,)."""
        if self.targets is None:
            return np.ones(len(self), dtype=np.int64)
        return np.array([len(row) for row in self.targets], dtype=np.int64)

    def with_unlabelled(self, others: Tokenized) -> Tokenized:
        """Refuse texts without summaries: there is nothing that a teacher could be compared on."""
        raise InputError(
            "texts without summaries teach nothing by themselves; let a fitted model write some (hashee generate "
            "--with-input) and train on those"
        )

    def training_inputs(self, indices: Sequence[int]) -> dict[str, Tensor]:
        """Return some examples with the tokens that the decoder reads: each summary shifted by one."""
        if self.targets is None:
            raise InputError("these documents have no summaries, so nothing can be learnt from them")
        shifted = {index: np.concatenate(([self.start_id], self.targets[index][:-1])) for index in indices}
        rows = padded_inputs({"input_ids": [shifted[index] for index in indices]}, range(len(indices)), self.padding)
        # Positions behind a summary are seen by none before them, so they need no mask.
        return self.inputs(indices) | {"decoder_input_ids": torch.from_numpy(rows["input_ids"])}

    def batch_targets(self, indices: Sequence[int]) -> Tensor:
        """Return the tokens of some summaries, one after the other: (tokens,)."""
        if self.targets is None:
            raise InputError("these documents have no summaries, so nothing can be learnt from them")
        return torch.from_numpy(np.concatenate([self.targets[index] for index in indices]).astype(np.int64))

    def word_rows(self, indices: Sequence[int]) -> Tensor | None:
        """Return where their tokens are in the flattened (examples * longest summary) batch: (tokens,)."""
        lengths = self.items[list(indices)]
        rows = [number * lengths.max() + np.arange(length) for number, length in enumerate(lengths)]
        return torch.from_numpy(np.concatenate(rows).astype(np.int64))


@dataclass(frozen=True)
class SummaryTokenizer(ExampleTokenizer):
    """Tokenizes documents and summaries for a model that writes text."""

    start_id: int = 0
    max_target_length: int = 128
    """Tokens of a summary at most, the end of text included."""
    writing: Writing = field(default_factory=Writing)

    def __call__(self, examples: Examples) -> TokenizedSummaries:
        """Tokenize one split."""
        read: Tokenized = super().__call__(Examples(examples.texts, None))
        targets = None
        if examples.targets is not None:
            tokenize = TextTokenizer(self.tokenizer, self.max_target_length, target=True)
            rows = tokenize(list(examples.targets))["input_ids"]
            targets = [np.asarray(row, dtype=np.int32) for row in rows]
        return TokenizedSummaries(
            ids=read.ids,
            types=None,
            targets=targets,
            starts=None,
            padding=read.padding,
            start_id=self.start_id,
            tokenizer=self.tokenizer,
            writing=self.writing,
        )
