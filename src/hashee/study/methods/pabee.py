"""PABEE (Zhou et al., NeurIPS 2020): exits trained together, weighted by depth; leave when layers agree in a row."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hashee.data.task_types import type_of
from hashee.study.exit_rules import ExitRule, Patience
from hashee.study.methods.early_exit import EarlyExit
from hashee.study.multi_exit import MultiExitModel, new_classifiers
from hashee.study.objectives import ExitLosses
from hashee.training.lesson import Lesson
from hashee.training.method import register_method
from hashee.training.objective import TargetLoss
from hashee.training.stages import Choice, Fit

SAME = 0.2
"""Scores that differ by less than this share of their standard deviation on train count as the same prediction."""


class Pabee(EarlyExit):
    """Patience-based early exit."""

    name = "pabee"
    knob = "patience"
    for_scores = True

    def train(self, fit: Fit) -> Choice:
        """Train encoder and classifiers together, for as many passes as others take in two stages."""
        model = fit.backbone.packed(fit.backbone.load(fit.settings.seed))
        tolerance = None
        if not type_of(fit.data.task).right_or_wrong:
            tolerance = SAME * float(np.std(np.asarray(fit.data.train.targets, dtype=float)))
        exits = MultiExitModel(model, new_classifiers(model, fit.backbone.depth - 1), tolerance=tolerance)
        objective = ExitLosses(TargetLoss(type_of(fit.data.task)), by_depth=True)
        recipe = replace(fit.recipe, epochs=2 * fit.recipe.epochs)
        job = replace(fit.job(self.name, exits, Lesson(objective, fit.train)), recipe=recipe)
        return self.trained(fit, job, recipe.epochs)

    def rule(self, model: MultiExitModel, knob: float) -> ExitRule:
        """Leave after so many layers that agree with the one before."""
        return Patience(int(knob), model.tolerance)

    def knobs(self, model: MultiExitModel) -> Sequence[float]:
        """Return every patience from one that nobody has to the least."""
        return [float(patience) for patience in range(model.layers, 0, -1)]


register_method(Pabee())
