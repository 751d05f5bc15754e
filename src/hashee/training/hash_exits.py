"""The paper's method: a dense model, an exit table for its vocabulary, and a model whose tokens exit by that table."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hashee.data import Task
from hashee.data.tokenized import Tokenized
from hashee.export.loading import load
from hashee.hf.flops import costs_of
from hashee.training.evaluation import Predictions, logits_for
from hashee.training.processes import Processes
from hashee.training.search import search_grid
from hashee.training.stages import WORK, Choice, Dense, Fit

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
        dense = fit.dense() if fit.settings.needs_dense else None
        choose = fit_each_hash if fit.settings.search is None else search_grid
        return replace(choose(fit, dense), dense=dense)

    def open(self, folder: Path) -> Any:
        """Return the converted model."""
        return load(folder)

    def knobs(self, model: Any) -> Sequence[float]:
        """Return the speed-up that the table was solved for."""
        return (float(model.exit_table.parameters.get("speedup", OWN_COST)),)

    def predict(self, model: Any, tokenized: Tokenized, processes: Processes, knob: float = OWN_COST) -> Predictions:
        """Run batches of like cost on the packed engine; the table has fixed what each text costs."""
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
