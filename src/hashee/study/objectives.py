"""What models with a classifier after every layer are trained for."""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from hashee.training.objective import LogitDistillation, Objective
from hashee.training.outputs import Batch, Need, Outputs


@dataclass(frozen=True)
class ExitLosses:
    """The weighted mean of an objective over the exits."""

    each: Objective
    by_depth: bool = False
    """Weigh each exit by its layer (PABEE) instead of equally."""
    internal_only: bool = False
    """Leave out the last exit (DeeBERT's second stage)."""

    @property
    def needs(self) -> Need:
        """What the objective of each exit needs."""
        return self.each.needs

    def __call__(self, outputs: Outputs, batch: Batch, teacher_outputs: Outputs | None = None) -> Tensor:
        """Return the summed loss of a batch."""
        exits = outputs.exits[:-1] if self.internal_only else outputs.exits
        losses = [self.each(replace(outputs, logits=each.logits), batch, teacher_outputs) for each in exits]
        weights = [each.layer if self.by_depth else 1 for each in exits]
        total = sum((weight * loss for weight, loss in zip(weights, losses, strict=True)), start=losses[0] * 0)
        return total / sum(weights)


@dataclass(frozen=True)
class SelfDistillation:
    """FastBERT's second stage: every internal classifier follows the last one; it needs no labels."""

    distance: LogitDistillation

    @property
    def needs(self) -> Need:
        """Nothing: the last classifier is the teacher."""
        return Need.NOTHING

    def __call__(self, outputs: Outputs, batch: Batch, teacher_outputs: Outputs | None = None) -> Tensor:
        """Return the summed distance of the internal classifiers from the last."""
        last = Outputs(outputs.exits[-1].logits.detach())
        followers = ExitLosses(self.distance, internal_only=True)
        return followers(outputs, batch, last)


@dataclass(frozen=True)
class Alternating:
    """BERxiT's training: the last exit alone in one step, all exits together in the next."""

    last: Objective
    together: Objective

    @property
    def needs(self) -> Need:
        """What either needs."""
        return self.last.needs | self.together.needs

    def __call__(self, outputs: Outputs, batch: Batch, teacher_outputs: Outputs | None = None) -> Tensor:
        """Return the summed loss of the step's objective."""
        objective = self.together if batch.step % 2 else self.last
        return objective(outputs, batch, teacher_outputs)


@dataclass(frozen=True)
class CertaintyLoss:
    """BERxiT's learning-to-exit module: the certainty of each exit against whether its prediction is right."""

    classes: bool
    """Whether classes are predicted; for scores, right is 1 - tanh of the absolute error."""

    @property
    def needs(self) -> Need:
        """The labels."""
        return Need.LABELS

    def __call__(self, outputs: Outputs, batch: Batch, teacher_outputs: Outputs | None = None) -> Tensor:
        """Return the squared error summed over examples, its mean over the exits that are asked: not the last."""
        assert batch.targets is not None  # they are needed
        losses = []
        for each in outputs.exits[:-1]:
            assert each.certainty is not None  # BERxiT's models have the module
            losses.append(F.mse_loss(each.certainty, self._right(each.logits.detach(), batch.targets), reduction="sum"))
        return torch.stack(losses).mean()

    def _right(self, logits: Tensor, targets: Tensor) -> Tensor:
        if self.classes:
            return (logits.argmax(-1) == targets).float()
        return 1 - torch.tanh((logits[:, 0] - targets).abs())
