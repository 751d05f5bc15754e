"""Losses that several types of tasks share."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def cross_entropy(logits: "Tensor", targets: "Tensor") -> "Tensor":
    """Return the summed cross-entropy: a scalar. logits: (predictions, labels); targets: (predictions,)."""
    from torch.nn import functional as F  # noqa: PLC0415

    return F.cross_entropy(logits, targets, reduction="sum")


def divergence(logits: "Tensor", teacher_logits: "Tensor", temperature: float) -> "Tensor":
    """Return the summed Kullback-Leibler divergence from a teacher's distribution: a scalar.

    Both: (predictions, labels).
    """
    from torch.nn import functional as F  # noqa: PLC0415

    own, teacher = (each.div(temperature).log_softmax(-1) for each in (logits, teacher_logits))
    return temperature**2 * F.kl_div(own, teacher, log_target=True, reduction="sum")
