"""Depth, exit table and early leaving together: three savings that multiply."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from hashee.data.task_types import type_of
from hashee.study.exit_rules import ConfidenceAbove, ExitRule
from hashee.study.methods.early_exit import EarlyExit, judged_by_exits
from hashee.study.methods.hash_depth import Depths
from hashee.study.methods.hash_exit import THRESHOLDS
from hashee.study.methods.tables import for_each_speedup
from hashee.study.multi_exit import AttentiveClassifier, MultiExitModel, new_classifiers
from hashee.study.objectives import SelfDistillation
from hashee.training.method import register_method
from hashee.training.objective import LogitDistillation, WeightedSum
from hashee.training.stages import WORK, Candidate, Choice, Fit

SPEEDUPS = (2.0, 3.0, 5.0)
"""Of the tables; leaving early multiplies them."""


class HashDepthExit(EarlyExit):
    """The model of `hash-depth`, from which texts leave where a classifier that follows the last one is sure."""

    name = "hash-depth-x-exit"
    knob = "confidence"

    def train(self, fit: Fit) -> Choice:
        """Train models as `hash-depth` does, while internal classifiers learn what the last one says.

        The classifiers read states without moving them, so the encoder learns as in `hash-depth`, but that all
        gradients are clipped together.
        """
        depths = Depths(fit)

        def at_speedup(speedup: float) -> Iterator[Candidate]:
            return (self._at(depths, speedup, depth) for depth in depths.for_speedup(speedup))

        return Choice(fit, for_each_speedup(fit, SPEEDUPS, at_speedup), dense=depths.dense)

    def _at(self, depths: Depths, speedup: float, depth: int) -> Candidate:
        """Train a model for a speed-up at a depth."""
        fit, name = depths.fit, f"{speedup:g}x, {depth} layers"
        folder = fit.folder / WORK / f"{self.name}-{speedup:g}x-{depth}"
        made = depths.model(speedup, depth, folder)
        exits = MultiExitModel(
            made.model, new_classifiers(made.model, depth - 1, AttentiveClassifier), moves_states=False
        )
        following = SelfDistillation(LogitDistillation(type_of(fit.data.task), temperature=1.0))
        objective = WeightedSum(((1.0, made.lesson.objective), (1.0, following)))
        job = replace(depths.job(f"{self.name} {name}", made), model=exits, saved=exits, objective=objective)
        return made.candidate(name, folder, fit.train_into(folder, judged_by_exits(fit, job), made.lesson.depends))

    def rule(self, model: MultiExitModel, knob: float) -> ExitRule:
        """Leave where one class is likely enough."""
        return ConfidenceAbove(knob)

    def knobs(self, model: MultiExitModel) -> Sequence[float]:
        """Return thresholds from one that nobody reaches."""
        return THRESHOLDS


register_method(HashDepthExit())
