"""Hash x exit: tokens exit by the table, and sequences leave where an internal classifier is sure."""

from collections.abc import Sequence
from dataclasses import replace

from hashee.study.exit_rules import ConfidenceAbove, ExitRule
from hashee.study.methods.early_exit import EarlyExit, judged_by_exits
from hashee.study.methods.first_layers import best_dense
from hashee.study.methods.tables import for_each_speedup
from hashee.study.multi_exit import MultiExitModel, new_classifiers
from hashee.study.objectives import ExitLosses
from hashee.training.method import register_method
from hashee.training.stages import WORK, Candidate, Choice, Fit

THRESHOLDS = (1.01, 0.999, 0.998, 0.995, 0.99, 0.98, 0.97, 0.95, 0.92, 0.9, 0.87, 0.84, 0.8, 0.75, 0.7, 0.6)
SPEEDUPS = (2.5, 4.0, 7.0)
"""Of the tables, with exits from before the first layer; leaving early multiplies them."""


class HashExit(EarlyExit):
    """Two savings that multiply: fewer tokens in each layer, fewer layers for easy texts."""

    name = "hash-x-exit"
    knob = "confidence"

    def train(self, fit: Fit) -> Choice:
        """Fine-tune the dense model; then train a model with a table by importance and all its exits together."""
        dense = fit.dense()
        teacher = best_dense(fit) if fit.settings.distillation else None

        def at_speedup(speedup: float) -> list[Candidate]:
            folder = fit.folder / WORK / f"{self.name}-{speedup:g}x"
            at_cost = fit.with_settings(speedup=speedup, min_exit=0)
            hashed = at_cost.converted("importance", dense, folder, teacher)
            exits = MultiExitModel(hashed.model, new_classifiers(hashed.model, fit.backbone.depth - 1))
            lesson = replace(hashed.lesson, objective=ExitLosses(hashed.lesson.objective, by_depth=True))
            job = at_cost.job(f"{self.name} {speedup:g}x", exits, lesson)
            record = at_cost.train_into(folder, judged_by_exits(fit, job), lesson.depends)
            passes = fit.passes_after(dense)
            return [Candidate(f"{speedup:g}x", folder, hashed.table, record, hashed.seconds, passes)]

        return Choice(fit, for_each_speedup(fit, SPEEDUPS, at_speedup), dense=dense)

    def rule(self, model: MultiExitModel, knob: float) -> ExitRule:
        """Leave where one class is likely enough."""
        return ConfidenceAbove(knob)

    def knobs(self, model: MultiExitModel) -> Sequence[float]:
        """Return thresholds from one that nobody reaches."""
        return THRESHOLDS


register_method(HashExit())
