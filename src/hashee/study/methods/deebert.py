"""DeeBERT (Xin et al., ACL 2020): off-ramps trained on a frozen fine-tuned model; leave where entropy is low."""

import math
from collections.abc import Sequence
from dataclasses import replace

from hashee.data.task_types import type_of
from hashee.study.exit_rules import EntropyBelow, ExitRule
from hashee.study.methods.early_exit import EarlyExit, freeze_
from hashee.study.multi_exit import MultiExitModel, new_classifiers
from hashee.study.objectives import ExitLosses
from hashee.training.lesson import Lesson
from hashee.training.method import register_method
from hashee.training.objective import TargetLoss
from hashee.training.stages import Choice, Fit

SHARES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97)
"""Of the largest entropy."""


class DeeBert(EarlyExit):
    """Dynamic early exiting by entropy."""

    name = "deebert"
    knob = "entropy"

    def train(self, fit: Fit) -> Choice:
        """Fine-tune the dense model; then train off-ramps alone."""
        dense = fit.dense()
        model = fit.backbone.packed(dense.backbone.load(fit.settings.seed))
        exits = MultiExitModel(model, new_classifiers(model, fit.backbone.depth - 1))
        freeze_(exits)
        objective = ExitLosses(TargetLoss(type_of(fit.data.task)), internal_only=True)
        job = fit.job(self.name, exits, Lesson(objective, fit.train))
        return replace(self.trained(fit, job, fit.passes_after(dense)), dense=dense)

    def rule(self, model: MultiExitModel, knob: float) -> ExitRule:
        """Leave where the entropy is below the threshold, in nats."""
        return EntropyBelow(knob)

    def knobs(self, model: MultiExitModel) -> Sequence[float]:
        """Return thresholds as shares of the largest entropy."""
        return [share * math.log(model.config.num_labels) for share in SHARES]


register_method(DeeBert())
