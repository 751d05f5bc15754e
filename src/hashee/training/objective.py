"""What is minimised: the error on the targets, the distance from a teacher's logits or hidden states, or a sum.

A new objective is a class with `needs` and `__call__`; equal fields give an equal loss.
"""

from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from hashee.data import Kind
from hashee.errors import InputError
from hashee.training.outputs import Batch, Need, Outputs
from hashee.training.settings import Distillation


class Objective(Protocol):
    """A loss as a sum over predictions; whoever knows the size of the step divides."""

    @property
    def needs(self) -> Need:
        """What the loss is computed from, besides the model's logits."""

    def __call__(self, outputs: Outputs, batch: Batch, teacher_outputs: Outputs | None = None) -> Tensor:
        """Return the summed loss of a batch: a scalar."""


@dataclass(frozen=True)
class TargetLoss:
    """The error on the targets: cross-entropy, for each label of multi-label tasks, or squared for scores."""

    kind: Kind

    @property
    def needs(self) -> Need:
        """The labels."""
        return Need.LABELS

    def __call__(self, outputs: Outputs, batch: Batch, teacher_outputs: Outputs | None = None) -> Tensor:
        """Return the summed error of all predictions."""
        if batch.targets is None:
            raise InputError("these examples have no labels to learn; distill a teacher that was fitted (distill=1)")
        logits, targets = outputs.logits.float(), batch.targets
        if self.kind is Kind.SCORE:
            return F.mse_loss(logits.squeeze(-1), targets.float(), reduction="sum")
        if self.kind is Kind.LABELS:
            return F.binary_cross_entropy_with_logits(logits, targets.float(), reduction="none").mean(dim=1).sum()
        return F.cross_entropy(logits, targets, reduction="sum")


@dataclass(frozen=True)
class LogitDistillation:
    """The distance from a teacher's logits; it needs no labels."""

    kind: Kind
    temperature: float = 2.0

    @property
    def needs(self) -> Need:
        """The teacher's logits."""
        return Need.TEACHER

    def __call__(self, outputs: Outputs, batch: Batch, teacher_outputs: Outputs | None = None) -> Tensor:
        """Return the summed distance: Kullback-Leibler divergence, or the squared difference of scores."""
        logits, teacher = outputs.logits.float(), _present(teacher_outputs).logits.float()
        if self.kind is Kind.SCORE:
            return F.mse_loss(logits, teacher, reduction="sum")
        # Gradients shrink with the square of the temperature, which would change the balance with the targets.
        scale = self.temperature**2
        logits, teacher = logits / self.temperature, teacher / self.temperature
        if self.kind is Kind.LABELS:
            loss = F.binary_cross_entropy_with_logits(logits, torch.sigmoid(teacher), reduction="none")
            return scale * loss.mean(dim=1).sum()
        return scale * F.kl_div(logits.log_softmax(-1), teacher.log_softmax(-1), log_target=True, reduction="sum")


@dataclass(frozen=True)
class HiddenDistillation:
    """The distance from a teacher's hidden states of the same width; it needs no labels."""

    layers: tuple[tuple[int, int], ...] = ((-1, -1),)
    """Pairs of (layer of the model, layer of the teacher); 0 is the embeddings, -1 the last layer."""
    distance: str = "mse"
    """`mse`: mean squared difference; `cosine`: 1 - cosine."""
    first_only: bool = False
    """Compare the first token of each text only, for heads that read no other."""

    def __post_init__(self) -> None:
        if self.distance not in ("mse", "cosine"):
            raise InputError(f"unknown distance {self.distance!r} of hidden states; choose from mse, cosine")
        if not self.layers:
            raise InputError("no hidden states are compared; give layers at least one pair, such as (-1, -1)")

    @property
    def needs(self) -> Need:
        """Hidden states of both."""
        return Need.TEACHER | Need.HIDDEN_STATES

    def __call__(self, outputs: Outputs, batch: Batch, teacher_outputs: Outputs | None = None) -> Tensor:
        """Return the mean distance over the tokens of each text and over the pairs of layers, summed over texts."""
        mask = batch.mask[:, :1] if self.first_only else batch.mask
        lengths = mask.sum(dim=1).clamp(min=1)
        distances = []
        for own_layer, teacher_layer in self.layers:
            own = _hidden(outputs, own_layer, "model")[:, : mask.shape[1]]
            other = _hidden(_present(teacher_outputs), teacher_layer, "teacher")[:, : mask.shape[1]]
            if own.shape != other.shape:
                raise InputError(
                    f"hidden states of {own.shape[-1]} numbers cannot follow a teacher's of {other.shape[-1]}; "
                    f"choose a teacher of the same width"
                )
            distances.append(self._apart(own, other).masked_fill(~mask, 0.0).sum(dim=1) / lengths)
        # A text with several tagged words has as many shares of the step's mean.
        return (torch.stack(distances).mean(dim=0) * batch.items).sum()

    def _apart(self, own: Tensor, other: Tensor) -> Tensor:
        """Return the distance of each token. own, other: (examples, tokens, width). Returns (examples, tokens)."""
        if self.distance == "cosine":
            return 1 - F.cosine_similarity(own, other, dim=-1)
        return (own - other).square().mean(dim=-1)


@dataclass(frozen=True)
class WeightedSum:
    """Several objectives, each with its weight."""

    parts: tuple[tuple[float, Objective], ...]

    @property
    def needs(self) -> Need:
        """What any of them needs."""
        return reduce(or_, (objective.needs for _, objective in self.parts), Need.NOTHING)

    def __call__(self, outputs: Outputs, batch: Batch, teacher_outputs: Outputs | None = None) -> Tensor:
        """Return the weighted sum of the losses."""
        losses = [weight * objective(outputs, batch, teacher_outputs) for weight, objective in self.parts]
        return sum(losses[1:], start=losses[0])


def objective_for(kind: Kind, distillation: Distillation | None = None, first_only: bool = False) -> Objective:
    """Return the objective of a kind of task with what is distilled. first_only: the head reads no other row."""
    if not distillation:
        return TargetLoss(kind)
    parts: list[tuple[float, Objective]] = []
    if distillation.logits < 1:
        parts.append((1 - distillation.logits, TargetLoss(kind)))
    if distillation.logits > 0:
        parts.append((distillation.logits, LogitDistillation(kind, distillation.temperature)))
    if distillation.hidden > 0:
        parts.append((distillation.hidden, HiddenDistillation(first_only=first_only)))
    return WeightedSum(tuple(parts))


def even_layers(layers: int, teacher_layers: int) -> tuple[tuple[int, int], ...]:
    """Pair every layer of a model with one of its teacher's, evenly spaced; the last ones with each other."""
    return tuple((layer, round(layer * teacher_layers / layers)) for layer in range(1, layers + 1))


def _present(teacher_outputs: Outputs | None) -> Outputs:
    if teacher_outputs is None:
        raise InputError("this objective follows a teacher, and there is none; name a fitted model (dense=...)")
    return teacher_outputs


def _hidden(outputs: Outputs, layer: int, whose: str) -> Tensor:
    """Return the hidden states after a layer: (examples, longest, width), in float32."""
    states = outputs.hidden_states or ()
    if not -len(states) <= layer < len(states):
        raise InputError(f"layer {layer} of the {whose} cannot be distilled; it has 0 to {len(states) - 1}")
    return states[layer].float()
