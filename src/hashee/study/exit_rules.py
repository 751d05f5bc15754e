"""When a sequence is sure enough to leave: the rules of the early-exit methods, one layer at a time."""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from hashee.training.outputs import ExitOutputs


class ExitRule(Protocol):
    """Decides after each layer which sequences leave."""

    def __call__(self, outputs: ExitOutputs, memory: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return which sequences leave, (sequences,) bool, and what to remember of each: (sequences, numbers).

        memory: what was remembered of the same sequences after the layer before; None after the first.
        """


@dataclass(frozen=True)
class EntropyBelow:
    """DeeBERT's and FastBERT's rule: the entropy of the predicted distribution is below a threshold."""

    threshold: float
    normalised: bool = False
    """Divide by the logarithm of the number of classes (FastBERT), so that the threshold is from 0 to 1."""

    def __call__(self, outputs: ExitOutputs, memory: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Leave where the distribution is sharp."""
        return entropy(outputs.logits, self.normalised) < self.threshold, None


@dataclass(frozen=True)
class ConfidenceAbove:
    """The largest probability is at least a threshold."""

    threshold: float

    def __call__(self, outputs: ExitOutputs, memory: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Leave where one class is likely enough."""
        return confidence(outputs.logits) >= self.threshold, None


@dataclass(frozen=True)
class CertaintyAbove:
    """BERxiT's rule: the learned certainty is at least a threshold."""

    threshold: float

    def __call__(self, outputs: ExitOutputs, memory: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Leave where the learning-to-exit module expects the prediction to be right."""
        assert outputs.certainty is not None  # BERxiT's models have the module
        return outputs.certainty >= self.threshold, None


@dataclass(frozen=True)
class Patience:
    """PABEE's rule: so many layers in a row predict the same as the layer before."""

    patience: int
    tolerance: float | None = None
    """For scores: predictions that differ by less than this are the same; None for classes."""

    def __call__(self, outputs: ExitOutputs, memory: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Count layers that agree; a change of mind starts the count again. memory: (sequences, 2)."""
        predicted = predictions_of(outputs.logits, classes=self.tolerance is None)
        count = torch.zeros_like(predicted)
        if memory is not None:
            before, agreed = memory.unbind(1)
            apart = (predicted - before).abs()
            same = apart == 0 if self.tolerance is None else apart < self.tolerance
            count = torch.where(same, agreed + 1, count)
        return count >= self.patience, torch.stack([predicted, count], dim=1)


def entropy(logits: Tensor, normalised: bool = False) -> Tensor:
    """Return the entropy of the predicted distributions, in nats or as a share of the largest. (sequences,)"""
    shares = logits.float().log_softmax(-1)
    found = -(shares.exp() * shares).sum(-1)
    return found / math.log(logits.shape[-1]) if normalised else found


def confidence(logits: Tensor) -> Tensor:
    """Return the probability of the likeliest class: (sequences,)."""
    return logits.float().softmax(-1).amax(-1)


def predictions_of(logits: Tensor, classes: bool) -> Tensor:
    """Return the predicted class or score of each sequence as a number: (sequences,)."""
    return logits.argmax(-1).float() if classes else logits[:, 0].float()


def exit_layers(outputs: list[ExitOutputs], rule: ExitRule) -> Tensor:
    """Return the layer at which each sequence leaves by a rule, from the outputs of all layers: (sequences,).

    What a sequence is told does not depend on which others have left, so one full pass serves every threshold.
    """
    last = outputs[-1].layer
    found = torch.full((len(outputs[0].logits),), last, dtype=torch.long)
    memory: Tensor | None = None
    for layer in outputs[:-1]:
        leaves, memory = rule(layer, memory)
        found = torch.where(leaves & (found == last), layer.layer, found)
    return found
