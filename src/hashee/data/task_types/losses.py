"""Losses that several types of tasks share: sums on tensors to learn from, and of single examples to report."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

Array = NDArray[Any]


def cross_entropy(logits: "Tensor", targets: "Tensor", label_smoothing: float = 0.0) -> "Tensor":
    """Return the summed cross-entropy: a scalar. logits: (predictions, labels); targets: (predictions,)."""
    from torch.nn import functional as F  # noqa: PLC0415

    return F.cross_entropy(logits, targets, reduction="sum", label_smoothing=label_smoothing)


def divergence(logits: "Tensor", teacher_logits: "Tensor", temperature: float) -> "Tensor":
    """Return the summed Kullback-Leibler divergence from a teacher's distribution: a scalar.

    Both: (predictions, labels).
    """
    from torch.nn import functional as F  # noqa: PLC0415

    own, teacher = (each.div(temperature).log_softmax(-1) for each in (logits, teacher_logits))
    return temperature**2 * F.kl_div(own, teacher, log_target=True, reduction="sum")


def mean_cross_entropy(logits: Array, targets: Array) -> float:
    """Return the mean cross-entropy of the rows that are known, 0 if none is.

    logits: (rows, labels), NaN in rows that are not known; targets: (rows,).
    """
    known = ~np.isnan(logits[:, 0])
    if not known.any():
        return 0.0
    return float(-log_probabilities(logits)[np.arange(len(targets)), targets][known].mean())


def least_probability(logits: Array) -> float | None:
    """Return the least of the largest probabilities of the rows that are known, None if none is.

    logits: (rows, labels), NaN in rows that are not known.
    """
    best = log_probabilities(logits).max(axis=1)
    known = best[~np.isnan(best)]
    return float(np.exp(known.min())) if len(known) else None


def log_probabilities(logits: Array) -> Array:
    """Return the logarithm of the softmax of each row: (rows, labels)."""
    exact = logits.astype(np.float64)
    shifted = exact - exact.max(axis=1, keepdims=True)
    logs: Array = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return logs
