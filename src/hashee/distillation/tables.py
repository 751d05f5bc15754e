"""The exit table of a speed-up without labels: importance for what the model gives its users, solved on their texts."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
from torch import Tensor
from torch.nn import functional as F

from hashee.data.batching import Batching, make_batches
from hashee.data.output_types import OutputType
from hashee.data.tokenized import Tokenized
from hashee.distillation.corpus import Corpus
from hashee.distillation.depth import depths_to_try, grouped
from hashee.errors import ImpossibleSpeedup
from hashee.hf.text_models import TextModel
from hashee.tables.budget import enough_held_out
from hashee.tables.measuring import Importance, measure_projections
from hashee.tables.table import ExitTable
from hashee.training.tables import budget_on

_MEASURED_TEXTS, _MEASURED_TOKENS = 8000, 250_000
"""How much importance is measured on at most: as much as many sentences have, or fewer long texts."""


def importance_of(model: TextModel, train: Tokenized, *, seed: int = 0, progress: bool = False) -> Importance:
    """Measure what updates are worth to the outputs of a dense model, embeddings by their direction."""

    def outputs(**inputs: Tensor) -> Tensor:
        found: Tensor = model(**inputs).logits
        return F.normalize(found, dim=-1) if model.output is OutputType.EMBEDDING else found

    batches = list(_batches(train, seed))
    options: dict[str, Any] = {"tokenizer": model.tokenizer, "seed": seed, "progress": progress}
    return measure_projections(model.transformer, _Inputs(train, batches), outputs, **options)


def table_by(
    importance: Importance, model: TextModel, corpus: Corpus, speedup: float, depth: int | None = None
) -> ExitTable:
    """Return the table that reaches an executed speed-up over a dense model on texts like these, with exits from 0.

    importance: what `importance_of` said of the dense model. depth: layers that are kept, see `depths_to_try`.
    """
    held_out = enough_held_out(len(corpus.held_out.texts))
    rows = (corpus.held_out if held_out else corpus.train).tokenized.ids
    budget = budget_on(rows, speedup, model.transformer, held_out=held_out, full_layers=importance.num_layers)
    *tried, last = depths_to_try(model, speedup, depth)
    for each in tried:
        # A head that reads one state can make so few layers cheaper than asked even if no token exits.
        with suppress(ImpossibleSpeedup):
            return ExitTable.from_importance(model.tokenizer, grouped(importance, each), budget, min_exit=0)
    return ExitTable.from_importance(model.tokenizer, grouped(importance, last), budget, min_exit=0)


class _Inputs:
    """Batches that know their number, for progress."""

    def __init__(self, tokenized: Tokenized, batches: list[list[int]]) -> None:
        self.tokenized, self.batches = tokenized, batches

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return (self.tokenized.inputs(indices) for indices in self.batches)


def _batches(train: Tokenized, seed: int) -> Iterator[list[int]]:
    """Yield the indices of batches of a sample of the texts."""
    drawn = np.random.default_rng(seed).permutation(len(train))[:_MEASURED_TEXTS]
    enough = np.cumsum(train.lengths[drawn]) <= _MEASURED_TOKENS
    enough[:1] = True
    sample = np.sort(drawn[enough])
    for batch in make_batches([train.ids[index].tolist() for index in sample], None, Batching()):
        yield [int(sample[number]) for number in batch]
