"""Depth and exit table solved together: layers that are cut off pay for tokens that stay longer in the others."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from hashee.data import Task
from hashee.study.methods.first_layers import best_dense
from hashee.study.methods.tables import COSTS, HashTable, for_each_speedup
from hashee.study.refusals import refuse_writing
from hashee.training.hash_exits import truncation_speedups
from hashee.training.lesson import Converted
from hashee.training.method import register_method
from hashee.training.settings import TAUGHT
from hashee.training.stage import StageRecord
from hashee.training.stages import WORK, Candidate, Choice, Fit
from hashee.training.trainer import TrainingJob

DEEPER = (2.0, 3.0)
"""Times as many layers as would reach a speed-up without exits; all are tried, and dev tells which is better."""


def depths_for(speedup: float, truncated: Mapping[int, float]) -> list[int]:
    """Return how many of a backbone's first layers are tried for an executed speed-up, fewest first.

    truncated: how many times cheaper the model is at each depth, without exits.
    """
    layers = max(truncated)

    def depth(deeper: float) -> int:
        fewest = min(layers, math.ceil(deeper * layers / speedup))
        # A head that reads one state can make so few layers cheaper than asked even if no token exits.
        return next((each for each in range(fewest, layers) if truncated[each] < speedup), layers)

    return sorted({depth(deeper) for deeper in DEEPER})


@dataclass(frozen=True)
class Shallow(Converted):
    """A model of some layers with a table, before it is trained, and what it takes."""

    passes: float | None
    """After its own."""
    start_seconds: float
    """That the dense model of its depth took, if it was trained for this model alone."""

    def candidate(self, name: str, folder: Path, record: StageRecord) -> Candidate:
        """Return the trained model as a candidate."""
        return Candidate(name, folder, self.table, record, self.seconds, self.passes, self.start_seconds)


class Depths:
    """The depths of one fit: a dense model of each, and the best dense model, which teaches at all of them."""

    def __init__(self, fit: Fit) -> None:
        self.fit = fit.with_settings(distill=fit.settings.distill or TAUGHT)
        self.dense = fit.dense()
        self.teacher = best_dense(fit)
        self.truncated = truncation_speedups(fit, self.dense)
        self._fits = {fit.backbone.layers: self.fit}

    def for_speedup(self, speedup: float) -> list[int]:
        """Return the depths that are tried for a speed-up, fewest layers first."""
        return depths_for(speedup, self.truncated)

    def model(self, speedup: float, depth: int, folder: Path) -> Shallow:
        """Return a model of a depth whose table by importance is solved for a speed-up over the whole backbone."""
        is_new = depth not in self._fits
        shallow = self._fits.setdefault(depth, self.fit.at_depth(depth))
        dense = shallow.dense()
        asked = shallow.with_settings(speedup=speedup, min_exit=0, hash="importance", table=None)
        made = asked.with_table("importance", dense, folder)
        # What the teacher says is the same at all depths, so the fit of all layers keeps it.
        lesson = self.fit.lesson(self.teacher, first_only=bool(made.model.hashed_encoder.reads_first_row))
        lesson = replace(lesson, depends=made.depends | lesson.depends)
        seconds = dense.record.seconds if is_new and dense.record is not None else 0.0
        return Shallow(made.model, made.table, made.seconds, lesson, self.fit.passes_after(dense), seconds)

    def job(self, title: str, made: Shallow) -> TrainingJob:
        """Return the training of a model."""
        return self.fit.job(title, made.model, made.lesson)


@dataclass(frozen=True)
class HashDepth(HashTable):
    """Tokens exit from the first layers by a table by importance, and the best dense model teaches."""

    name: str = "hash-depth"
    hash: str = "importance"
    speedups: tuple[float, ...] = COSTS
    min_exit: int = 0

    def refusal(self, task: Task) -> str | None:
        """Refuse models that write text, whose decoders cost the same at any depth of the encoder."""
        return refuse_writing(self.name, task)

    def train(self, fit: Fit) -> Choice:
        """Fine-tune a dense model of each depth; from it, models with tables, which follow the best dense model."""
        depths = Depths(fit)

        def at_cost(speedup: float) -> Iterator[Candidate]:
            return (self._at(depths, speedup, depth) for depth in depths.for_speedup(speedup))

        return Choice(fit, for_each_speedup(fit, self.speedups, at_cost), dense=depths.dense)

    def _at(self, depths: Depths, speedup: float, depth: int) -> Candidate:
        """Train a model for a speed-up at a depth."""
        name = f"{speedup:g}x, {depth} layers"
        folder = depths.fit.folder / WORK / f"{self.name}-{speedup:g}x-{depth}"
        made = depths.model(speedup, depth, folder)
        job = depths.job(f"{self.name} {name}", made)
        return made.candidate(name, folder, depths.fit.train_into(folder, job, made.lesson.depends))


register_method(HashDepth())
