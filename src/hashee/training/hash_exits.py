"""The paper's method: a dense model, an exit table for its vocabulary, and a model whose tokens exit by that table."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from hashee.cost.macs import dense_macs
from hashee.data import Task
from hashee.data.summaries import TokenizedSummaries
from hashee.data.tokenized import Tokenized
from hashee.export.loading import load
from hashee.families.adapters import adapter_for, head_reads_first_row
from hashee.hf.flops import costs_of
from hashee.tables.table import ExitTable
from hashee.training.evaluation import Predictions, logits_for, write_summaries
from hashee.training.processes import Processes
from hashee.training.search import search_grid
from hashee.training.settings import AUTO
from hashee.training.stages import WORK, Choice, Dense, Fit

SHARES = (0.67, 0.5, 0.34, 0.17)
"""Of the layers, tried in turn for `depth="auto"`."""
NEVER = "never"
"""The table of a model that is only truncated."""
OWN_COST = 0.0
"""Operating point of a table that was not solved for a speed-up."""


class HashExits:
    """Every token of the vocabulary has a fixed exit layer."""

    name = "hash-exits"
    knob = "speedup"

    def refusal(self, task: Task) -> str | None:
        """Refuse nothing: tokens exit whatever is predicted."""
        return None

    def train(self, fit: Fit) -> Choice:
        """Fit the dense model if it is needed, then one with exits for each hash, or for each point of a grid."""
        if fit.settings.depth == AUTO:
            return fit_each_depth(fit)
        dense = fit.dense() if fit.settings.needs_dense else None
        choose = fit_each_hash if fit.settings.search is None else search_grid
        return replace(choose(fit, dense), dense=dense)

    def open(self, folder: Path) -> Any:
        """Return the converted model."""
        return load(folder)

    def knobs(self, model: Any) -> Sequence[float]:
        """Return the speed-up that the table was solved for."""
        return (float(model.exit_table.parameters.get("speedup", OWN_COST)),)

    def run(self, model: Any, inputs: Mapping[str, Tensor], knob: float = OWN_COST) -> Tensor:
        """Run the packed engine; tokens exit by the table."""
        logits: Tensor = model(**inputs).logits
        return logits

    def predict(self, model: Any, tokenized: Tokenized, processes: Processes, knob: float = OWN_COST) -> Predictions:
        """Run batches of like cost on the packed engine; the table has fixed what each text costs to read."""
        if isinstance(tokenized, TokenizedSummaries):
            return write_summaries(model, tokenized, processes)
        reads_first_row = bool(model.hashed_encoder.reads_first_row)
        ids = [row.tolist() for row in tokenized.ids]
        costs = costs_of(model.config, model.exit_table, ids, reads_first_row)
        return Predictions(logits_for(model, tokenized, processes), costs)

    def sweep(
        self, model: Any, tokenized: Tokenized, processes: Processes, knobs: Sequence[float]
    ) -> list[Predictions]:
        """Predict once: a table has one operating point."""
        return [self.predict(model, tokenized, processes)] * len(knobs)


def fit_each_hash(fit: Fit, dense: Dense | None) -> Choice:
    """Fit a candidate for each hash in the settings."""
    return Choice(fit, [fit.hashed(hash, dense, fit.folder / WORK / hash) for hash in fit.settings.hashes])


def fit_each_depth(fit: Fit) -> Choice:
    """Fit candidates on several depths for one speed-up, truncation without exits among them.

    Layers that are cut off pay for tokens that stay longer in the others, so depth and table are chosen together.
    """
    whole, asked = fit.dense(), fit.settings.speedup or 1.0
    reached = truncation_speedups(fit, whole)
    teacher = whole.packed() if fit.settings.distillation else None
    fits, candidates = [], []
    for depth in depths_for(asked, reached):
        shallow, hashes = fit.at_depth(depth), fit.settings.hashes
        if reached[depth] >= asked:
            # Without any exits it is as cheap as asked.
            shallow, hashes = shallow.with_settings(speedup=None), (NEVER,)
        dense = whole if depth == fit.backbone.layers else shallow.dense()
        for hash in hashes:
            found = shallow.hashed(hash, dense, shallow.folder / WORK / hash, teacher)
            candidates.append(replace(found, hash=f"{hash}, {depth} layers"))
            fits.append(shallow)
    best = Choice(fit, candidates).best
    return Choice(fits[candidates.index(best)].in_place_of(fit), candidates, dense=whole)


def depths_for(asked: float, reached: Mapping[int, float]) -> list[int]:
    """Return the depths that are tried: all layers, and fewer down to where truncation alone is as cheap as asked.

    reached: how many times cheaper the model is at each depth, without exits.
    """
    layers = max(reached)
    tried = [layers]
    for share in SHARES:
        depth = max(1, round(share * layers))
        if depth < tried[-1]:
            tried.append(depth)
        if reached[tried[-1]] >= asked:
            break
    return tried


def truncation_speedups(fit: Fit, dense: Dense) -> dict[int, float]:
    """Return, for each depth, how many times cheaper the first layers are on dev than the whole model, as executed."""
    model = dense.backbone.load()
    shape, reads_first_row = adapter_for(model.config).shape(model.config), head_reads_first_row(model)
    full = dense_macs(shape, shape.layers, fit.dev.lengths)
    ids = [row.tolist() for row in fit.dev.ids]
    found = {}
    for depth in range(1, shape.layers + 1):
        never = ExitTable.never(model.config.vocab_size, depth)
        found[depth] = full / float(costs_of(model.config, never, ids, reads_first_row).executed.sum())
    return found
