"""The executed speed-up that a table shall reach, and the one that any table reaches on given texts.

Speed-ups here are ratios of multiply-accumulates as the engine executes them (`executed_macs`), not the paper's count.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedConfig

from hashee.cost.macs import EncoderShape, dense_macs, executed_macs
from hashee.data.tokenizing import token_ids
from hashee.errors import InputError, TableError
from hashee.families.adapters import adapter_for, head_reads_first_row

Counts = NDArray[np.int64]

_UNSEEN = -1
# Types in more texts than this look the same to a new text as to one of their own.
_RARE = 32
_LEAST_HELD_OUT = 300


@dataclass(frozen=True)
class Seen:
    """What the corpus that a table is built from showed of the types that exit.

    ids, occurrences: (types,) how often it holds each of them; num_texts: how many texts it has.
    """

    ids: NDArray[np.int64]
    occurrences: NDArray[np.int64]
    num_texts: int


@dataclass(frozen=True, eq=False)
class Budget:
    """A speed-up over the same model without exits, and the texts on which it is counted as the engine runs them.

    speedup: executed speed-up, that is multiply-accumulates of the dense model / those that the engine executes.
    ids: (tokens,) the ids of all texts one after the other, special tokens included; lengths: (texts,).
    reads_first_row: whether the head reads the first position only.
    held_out: whether tables are built from other texts than these. If not, new texts will hold tokens that a table's
    corpus never showed, which cost the full depth; the count allows for them. None: decided by table, see `is_corpus`.
    texts_with: (vocab,) in how many texts of the tables' corpus each token is, if these texts are a part of it only.
    full_layers: depth of the model without exits; None if it is that of the table.
    cut: whether texts were cut at the model's length.
    """

    speedup: float
    shape: EncoderShape
    ids: Counts
    lengths: Counts
    reads_first_row: bool = False
    held_out: bool | None = None
    texts_with: Counts | None = None
    full_layers: int | None = None
    cut: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.speedup < float("inf"):
            raise TableError(f"speedup={self.speedup} must be a positive number, such as 3 for a third of the cost")
        if not len(self.ids) or len(self.ids) != self.lengths.sum():
            raise InputError(f"a budget needs texts to count on: {len(self.ids)} ids in {len(self.lengths)} texts")
        if self.ids.min() < 0:
            raise InputError(f"token id {self.ids.min()} of the budget's texts is negative; pass ids of a tokenizer")
        if self.texts_with is not None and len(self.texts_with) <= self.ids.max():
            raise InputError(
                f"texts_with has {len(self.texts_with)} tokens, but token id {self.ids.max()} is in the texts"
            )

    @classmethod
    def of(
        cls,
        speedup: float,
        model_or_config: Any,
        texts_or_ids: Any,
        tokenizer: Any = None,
        *,
        reads_first_row: bool | None = None,
        held_out: bool | None = None,
        texts_with: Counts | None = None,
        full_layers: int | None = None,
    ) -> "Budget":
        """Make a budget for a model, or its config, on texts as `count_flops` takes them.

        texts_or_ids: texts, pairs, or token id lists that include the special tokens. reads_first_row: known
        from a model's head; for a config it is False unless given. full_layers: by default the depth of the model. The
        rest is as in `Budget`.
        """
        config = model_or_config if isinstance(model_or_config, PreTrainedConfig) else model_or_config.config
        adapter = adapter_for(config)
        shape, limit = adapter.shape(config), adapter.max_length(config)
        lists = [np.asarray(ids, dtype=np.int64) for ids in token_ids(texts_or_ids, tokenizer, limit)]
        lengths = np.array([len(ids) for ids in lists], dtype=np.int64)
        limit = min(limit, getattr(tokenizer, "model_max_length", limit))
        return cls(
            speedup,
            shape,
            np.concatenate(lists) if lists else np.empty(0, dtype=np.int64),
            lengths,
            head_reads_first_row(model_or_config) if reads_first_row is None else reads_first_row,
            held_out,
            texts_with,
            shape.layers if full_layers is None else full_layers,
            cut=bool((lengths >= limit).any()),
        )

    def is_corpus(self, seen: Seen | None) -> bool:
        """Tell whether these are the texts that a table was built from, so that new texts hold tokens it does not know.

        seen: what the table knows of its corpus; None if it knows the whole vocabulary. The texts are the corpus if
        they are as many and hold each of its token types as often, or less often because texts were cut.
        """
        if seen is None or self.held_out is not None:
            return seen is not None and not self.held_out
        if self.texts_with is not None:
            return True
        if len(self.lengths) != seen.num_texts:
            return False
        here = np.bincount(self.ids, minlength=int(seen.ids.max(initial=-1)) + 1)[seen.ids]
        return bool(np.all(here <= seen.occurrences if self.cut else here == seen.occurrences))

    def speedup_of(self, exit_layers: Counts, num_layers: int, *, counted: bool) -> float:
        """Return the executed speed-up that a table reaches on these texts, or on new texts like these.

        exit_layers: (vocab,). counted: whether the table knows the tokens of these texts only, and sends all others to
        the last layer (`is_corpus`); then tokens that only one text showed count as unseen there.
        """
        if self.ids.max() >= len(exit_layers):
            raise InputError(
                f"token id {self.ids.max()} of the budget's texts is outside the table of {len(exit_layers)} tokens; "
                f"use one tokenizer for both"
            )
        ids = self._ids_as_new if counted and not self.held_out else self.ids
        # One entry more, for unseen tokens: they are numbered -1.
        exits = np.append(exit_layers, num_layers)[ids]
        leaving = np.bincount(self._text * (num_layers + 1) + exits, minlength=len(self.lengths) * (num_layers + 1))
        active = leaving.reshape(-1, num_layers + 1)[:, ::-1].cumsum(axis=1)[:, ::-1]
        return self._full_macs(num_layers) / max(self._macs(active, num_layers), 1)

    def update_costs(self, num_layers: int) -> NDArray[np.float64]:
        """Return what one more layer costs per token in each layer when it is run for all tokens. (num_layers,)"""
        depth = np.arange(num_layers + 1)
        totals = [self._macs(self.lengths[:, None] * (depth <= last), num_layers) for last in depth]
        return np.diff(np.array(totals, dtype=np.float64)) / len(self.ids)

    def _macs(self, active: Counts, num_layers: int) -> int:
        return executed_macs(replace(self.shape, layers=num_layers), self.lengths, active, self.reads_first_row)

    def _full_macs(self, num_layers: int) -> int:
        return dense_macs(self.shape, self.full_layers or num_layers, self.lengths)

    @cached_property
    def _text(self) -> Counts:
        """The number of the text that each token is in. (tokens,)"""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @cached_property
    def _ids_as_new(self) -> Counts:
        """The ids as they would be in texts that no table was built from. (tokens,)

        Without the text itself, each of its types is in one text less: types of this text alone are unseen, those of
        two texts are like the ones in one text, and so on. So each rare type is replaced by one that is in one text
        less, each of these in turn.
        """
        # Each pair of a text and a type in it, and which of them each token belongs to.
        pairs, pair_of_token = np.unique(self._text * (self.ids.max() + 1) + self.ids, return_inverse=True)
        types = pairs % (self.ids.max() + 1)
        texts_with = np.bincount(types) if self.texts_with is None else self.texts_with
        stand_in: Counts = types.copy()
        for texts in range(1, _RARE + 1):
            indices = np.flatnonzero(texts_with[types] == texts)
            rarer = np.flatnonzero(texts_with == texts - 1) if texts > 1 else np.array([_UNSEEN])
            if len(rarer):
                stand_in[indices] = rarer[np.arange(len(indices)) % len(rarer)]
        as_new: Counts = stand_in[pair_of_token]
        return as_new


def enough_held_out(texts: int) -> bool:
    """Tell whether held-out texts are enough to count a speed-up on; with fewer, the training texts are better."""
    return texts >= _LEAST_HELD_OUT
