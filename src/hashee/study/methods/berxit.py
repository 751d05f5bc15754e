"""BERxiT (Xin et al., EACL 2021): exits fine-tuned in alternation, and a module that learns when to exit."""

from collections.abc import Sequence
from dataclasses import replace

from hashee.data.task_types import type_of
from hashee.study.exit_rules import CertaintyAbove, ExitRule
from hashee.study.methods.early_exit import EarlyExit
from hashee.study.multi_exit import MultiExitModel, new_certainty, new_classifiers
from hashee.study.objectives import Alternating, CertaintyLoss, ExitLosses
from hashee.training.lesson import Lesson
from hashee.training.method import register_method
from hashee.training.objective import TargetLoss, WeightedSum
from hashee.training.stages import Choice, Fit

THRESHOLDS = (1.01, 0.99, 0.98, 0.97, 0.95, 0.94, 0.92, 0.9, 0.87, 0.84, 0.8, 0.75, 0.7, 0.6, 0.5, 0.3, 0.2, 0.1, 0.0)


class Berxit(EarlyExit):
    """Learning to exit."""

    name = "berxit"
    knob = "certainty"
    for_scores = True

    def train(self, fit: Fit) -> Choice:
        """Train the last exit and all exits in turn, with the certainty of each, in one stage."""
        model = fit.backbone.packed(fit.backbone.load(fit.settings.seed))
        exits = MultiExitModel(model, new_classifiers(model, fit.backbone.depth - 1), new_certainty(model))
        last = TargetLoss(type_of(fit.data.task))
        certainty = CertaintyLoss(classes=type_of(fit.data.task).one_decision)
        # The paper sums the losses of all exits; a mean keeps the rate of the recipe.
        together = WeightedSum(((1.0, ExitLosses(last)), (1.0, certainty)))
        recipe = replace(fit.recipe, epochs=2 * fit.recipe.epochs)
        job = fit.job(self.name, exits, Lesson(Alternating(last, together), fit.train))
        return self.trained(fit, replace(job, recipe=recipe), recipe.epochs)

    def rule(self, model: MultiExitModel, knob: float) -> ExitRule:
        """Leave where the module expects the prediction to be right."""
        return CertaintyAbove(knob)

    def knobs(self, model: MultiExitModel) -> Sequence[float]:
        """Return thresholds from one that nobody reaches."""
        return THRESHOLDS


register_method(Berxit())
