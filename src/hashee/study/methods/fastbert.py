"""FastBERT (Liu et al., ACL 2020): student classifiers that follow the last one; leave where entropy is low."""

from collections.abc import Sequence
from dataclasses import replace

from hashee.data.task_types import type_of
from hashee.study.exit_rules import EntropyBelow, ExitRule
from hashee.study.methods.deebert import SHARES
from hashee.study.methods.early_exit import EarlyExit, freeze_
from hashee.study.multi_exit import AttentiveClassifier, MultiExitModel, new_classifiers
from hashee.study.objectives import SelfDistillation
from hashee.training.lesson import Lesson
from hashee.training.method import register_method
from hashee.training.objective import LogitDistillation
from hashee.training.stages import Choice, Fit


class FastBert(EarlyExit):
    """Self-distilled exits with an adjustable speed."""

    name = "fastbert"
    knob = "speed"

    def train(self, fit: Fit) -> Choice:
        """Fine-tune the dense model; then let a classifier after every layer but the last follow its head."""
        dense = fit.dense()
        model = fit.backbone.packed(dense.backbone.load(fit.settings.seed))
        exits = MultiExitModel(model, new_classifiers(model, fit.backbone.depth - 1, AttentiveClassifier))
        freeze_(exits)
        objective = SelfDistillation(LogitDistillation(type_of(fit.data.task), temperature=1.0))
        job = fit.job(self.name, exits, Lesson(objective, fit.taught))
        return replace(self.trained(fit, job, fit.passes_after(dense)), dense=dense)

    def rule(self, model: MultiExitModel, knob: float) -> ExitRule:
        """Leave where the entropy, as a share of the largest, is below the speed."""
        return EntropyBelow(knob, normalised=True)

    def knobs(self, model: MultiExitModel) -> Sequence[float]:
        """Return speeds from 0, where nobody leaves early."""
        return SHARES


register_method(FastBert())
