"""What is minimised: the error on the targets, the distance from a teacher's logits or hidden states, or a sum.

A new objective is a class with `needs` and `__call__`; equal fields give an equal loss. The loss of targets and
the distance between logits depend on the type of the task, which defines them (`hashee.data.task_types`).
"""

from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from hashee.data.task_types import TaskType
from hashee.errors import InputError
from hashee.training.outputs import Batch, Need, Outputs
from hashee.training.settings import Distillation


class Objective(Protocol):
    """A loss as a sum over predictions; the trainer, which knows how many a step has, divides by their number."""

    @property
    def needs(self) -> Need:
        """What the loss is computed from, besides the model's logits."""

    def __call__(self, outputs: Outputs, batch: Batch, teacher_outputs: Outputs | None = None) -> Tensor:
        """Return the summed loss of a batch: a scalar."""


@dataclass(frozen=True)
class TargetLoss:
    """The error on the targets, as the type of the task defines it."""

    task_type: TaskType

    @property
    def needs(self) -> Need:
        """The labels."""
        return Need.LABELS

    def __call__(self, outputs: Outputs, batch: Batch, teacher_outputs: Outputs | None = None) -> Tensor:
        """Return the summed error of all predictions that have a target."""
        if batch.targets is None:
            raise InputError("these examples have no labels to learn; distill a teacher that was fitted (distill=1)")
        logits = outputs.logits if batch.labelled is None else outputs.logits[batch.labelled]
        return self.task_type.loss(logits.float(), batch.targets)


@dataclass(frozen=True)
class LogitDistillation:
    """The distance from a teacher's logits, as the type of the task defines it; it needs no labels."""

    task_type: TaskType
    temperature: float = 2.0

    @property
    def needs(self) -> Need:
        """The teacher's logits."""
        return Need.TEACHER

    def __call__(self, outputs: Outputs, batch: Batch, teacher_outputs: Outputs | None = None) -> Tensor:
        """Return the summed distance of all predictions."""
        logits, teacher_logits = outputs.logits.float(), _present(teacher_outputs).logits.float()
        return self.task_type.distillation_loss(logits, teacher_logits, self.temperature)


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
            distances.append(self._distance(own, other).masked_fill(~mask, 0.0).sum(dim=1) / lengths)
        # A text counts once for each of its tagged words in the mean of the step.
        return (torch.stack(distances).mean(dim=0) * batch.items).sum()

    def _distance(self, own: Tensor, other: Tensor) -> Tensor:
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


def objective_for(task_type: TaskType, distillation: Distillation | None = None, first_only: bool = False) -> Objective:
    """Return the objective of a type of task with distillation. first_only: the head reads the first row only."""
    if not distillation:
        return TargetLoss(task_type)
    parts: list[tuple[float, Objective]] = []
    if distillation.logits < 1:
        parts.append((1 - distillation.logits, TargetLoss(task_type)))
    if distillation.logits > 0:
        parts.append((distillation.logits, LogitDistillation(task_type, distillation.temperature)))
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
