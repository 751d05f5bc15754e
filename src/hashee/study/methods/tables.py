"""HashEE (Sun et al., 2022) with every table of the paper, and with tables by importance, from layer 1 and from 0."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from hashee.data import Task
from hashee.data.task_types import type_of
from hashee.data.tokenized import Tokenized
from hashee.errors import ImpossibleSpeedup
from hashee.study.methods.first_layers import best_dense
from hashee.tables.table import ExitTable
from hashee.training.evaluation import Predictions
from hashee.training.hash_exits import OWN_COST, HashExits
from hashee.training.method import register_method
from hashee.training.processes import Processes
from hashee.training.stages import WORK, Candidate, Choice, Dense, Fit

COSTS = (2.0, 3.0, 4.0, 6.0, 10.0)
"""Executed speed-ups over the whole backbone that tables are solved for."""
OTHER_SEED = 1000
"""What is added to the seed of a random table for the one that takes its place after training."""


def for_each_speedup(
    fit: Fit, speedups: Sequence[float], train: Callable[[float], Iterable[Candidate]]
) -> list[Candidate]:
    """Train models for each speed-up, or for the one in the settings; those that no table reaches are left out.

    Special tokens and tokens that the corpus never showed stay to the last layer, which on some tasks costs more than a
    high speed-up leaves. If nothing is left, the last refusal is raised.
    """
    asked = speedups if fit.settings.speedup is None else (fit.settings.speedup,)
    candidates: list[Candidate] = []
    refused = None
    for speedup in asked:
        try:
            # Of several depths for a speed-up, those before one that no table reaches are kept.
            for candidate in train(speedup):
                candidates.append(candidate)
        except ImpossibleSpeedup as error:
            refused = error
    if refused is not None and not candidates:
        raise refused
    return candidates


@dataclass(frozen=True)
class HashTable:
    """Tokens exit by a table of one kind."""

    name: str
    hash: str
    speedups: tuple[float, ...] = (OWN_COST,)
    """That tables are solved for; `OWN_COST` for equally large buckets, as in the paper."""
    min_exit: int = 1
    consistent: bool = True
    """Whether inference uses the table of training (all but the paper's Rand-incons)."""
    knob: str = "speedup"

    def refusal(self, task: Task) -> str | None:
        """Refuse mutual information with tags and summaries, which are no one label for each text."""
        task_type = type_of(task)
        if self.hash == "mi" and task_type.tags_words:
            return f"mutual information needs a label for each text; {task.name} has one for each word"
        if self.hash == "mi" and task_type.writes_text:
            return f"mutual information needs a label for each text; {task.name} has summaries"
        return None

    def train(self, fit: Fit) -> Choice:
        """Fine-tune the dense model; then a model with a table for each speed-up, from the dense one."""
        dense = fit.dense()
        teacher = best_dense(fit) if fit.settings.distillation else None

        def at_cost(speedup: float) -> list[Candidate]:
            asked = None if speedup == OWN_COST else speedup
            own = fit.with_settings(speedup=asked, min_exit=self.min_exit, hash=self.hash, table=None)
            return [self.fitted(own, dense, fit.folder / WORK / f"{self.name}-{speedup:g}x", teacher)]

        return Choice(fit, for_each_speedup(fit, self.speedups, at_cost), dense=dense)

    def fitted(self, fit: Fit, dense: Dense, folder: Path, teacher: Any) -> Candidate:
        """Train a model with the table that the settings ask for. teacher: a packed model, or None."""
        return fit.hashed(self.hash, dense, folder, teacher)

    def open(self, folder: Path) -> Any:
        """Return the converted model; with another random table than in training if the two are not consistent."""
        model = HashExits().open(folder)
        if not self.consistent:
            trained = model.exit_table
            seed = int(trained.parameters["seed"]) + OTHER_SEED
            other = ExitTable.at_random(
                model.tokenizer, trained.num_layers, num_buckets=trained.parameters["num_buckets"], seed=seed
            )
            model.install_tables(other.resized(len(trained.exit_layers)), None)
        return model

    def knobs(self, model: Any) -> Sequence[float]:
        """Return the speed-up that the table was solved for."""
        return HashExits().knobs(model)

    def run(self, model: Any, inputs: Mapping[str, Tensor], knob: float) -> Tensor:
        """Run the packed engine; tokens exit by the table."""
        return HashExits().run(model, inputs, knob)

    def predict(self, model: Any, tokenized: Tokenized, processes: Processes, knob: float) -> Predictions:
        """Run batches of like cost on the packed engine."""
        return HashExits().predict(model, tokenized, processes, knob)

    def sweep(
        self, model: Any, tokenized: Tokenized, processes: Processes, knobs: Sequence[float]
    ) -> list[Predictions]:
        """Predict once: a table has one operating point."""
        return HashExits().sweep(model, tokenized, processes, knobs)


for method in (
    HashTable("hash-frequency", "frequency"),
    HashTable("hash-mi", "mi"),
    HashTable("hash-clustered", "clustered"),
    HashTable("hash-rand-cons", "random"),
    HashTable("hash-rand-incons", "random", consistent=False),
    HashTable("hash-frequency-solved", "frequency", COSTS, min_exit=0),
    HashTable("hash-importance-1", "importance", COSTS[:3]),
    HashTable("hash-importance", "importance", COSTS, min_exit=0),
):
    register_method(method)
