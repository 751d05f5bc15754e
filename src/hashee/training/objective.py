"""What is minimised: the error on the targets, and with distillation the distance from a teacher's answers."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from hashee.data import Kind


@dataclass(frozen=True)
class Objective:
    """The loss of one kind of task, as a sum over answers; whoever knows the size of the step divides."""

    kind: Kind
    distill: float = 0.0
    """Weight of the teacher; the targets have the rest."""
    temperature: float = 2.0

    def loss(self, logits: Tensor, targets: Tensor, teacher: Tensor | None = None) -> Tensor:
        """Return the summed loss of some answers.

        logits, teacher: (answers, labels), with one label for scores. targets: (answers,), or (answers, labels).
        """
        logits = logits.float()
        loss = self._error(logits, targets)
        if self.distill == 0 or teacher is None:
            return loss
        return (1 - self.distill) * loss + self.distill * self._distance(logits, teacher.float())

    def _error(self, logits: Tensor, targets: Tensor) -> Tensor:
        if self.kind is Kind.SCORE:
            return F.mse_loss(logits.squeeze(-1), targets.float(), reduction="sum")
        if self.kind is Kind.LABELS:
            return F.binary_cross_entropy_with_logits(logits, targets.float(), reduction="none").mean(dim=1).sum()
        return F.cross_entropy(logits, targets, reduction="sum")

    def _distance(self, logits: Tensor, teacher: Tensor) -> Tensor:
        if self.kind is Kind.SCORE:
            return F.mse_loss(logits, teacher, reduction="sum")
        # Gradients shrink with the square of the temperature, which would change the balance with the targets.
        scale = self.temperature**2
        logits, teacher = logits / self.temperature, teacher / self.temperature
        if self.kind is Kind.LABELS:
            loss = F.binary_cross_entropy_with_logits(logits, torch.sigmoid(teacher), reduction="none")
            return scale * loss.mean(dim=1).sum()
        return scale * F.kl_div(logits.log_softmax(-1), teacher.log_softmax(-1), log_target=True, reduction="sum")
