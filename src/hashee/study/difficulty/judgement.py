"""How well difficulty is predicted: accuracy, the paper's micro-averages over the negative label, calibration."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
BINS = 10
"""Of equal width, for the expected calibration error."""


@dataclass(frozen=True)
class Judgement:
    """Of predictions for instances and layers; the negative label, a layer that is wrong, is what is to be found."""

    accuracy: float
    """Share of all instances and layers that are predicted rightly."""
    precision: float | None
    """Of predicted negatives, over all layers at once; None where nothing is predicted to be negative."""
    recall: float
    f1: float | None
    calibration_error: float
    """Expected: mean distance of the predicted probability from the share that is right, over bins."""
    layer_accuracy: tuple[float, ...]
    """Accuracy of each layer's column."""
    negatives: float
    """Share of instances and layers that are negative."""


def judge(probabilities: Array, targets: Array) -> Judgement:
    """Judge the probabilities that layers are right. Both: (instances, layers); NaN rows were never predicted."""
    known = ~np.isnan(probabilities).any(axis=1)
    probabilities, targets = probabilities[known], targets[known]
    predicted = probabilities >= 0.5
    right = targets == 1
    hits = int((~predicted & ~right).sum())
    found, there = int((~predicted).sum()), int((~right).sum())
    equal = predicted == right
    return Judgement(
        accuracy=float(equal.mean()),
        precision=hits / found if found else None,
        recall=hits / there if there else 0.0,
        f1=2 * hits / (found + there) if found else None,
        calibration_error=calibration_error(probabilities, right),
        layer_accuracy=tuple(float(share) for share in equal.mean(axis=0)),
        negatives=float((~right).mean()),
    )


def calibration_error(probabilities: Array, right: Array) -> float:
    """Return the expected calibration error over all instances and layers."""
    flat, outcomes = probabilities.ravel(), right.ravel().astype(np.float64)
    numbers = np.minimum((flat * BINS).astype(np.int64), BINS - 1)
    counts = np.bincount(numbers, minlength=BINS)
    gaps = np.abs(
        np.bincount(numbers, weights=flat, minlength=BINS) - np.bincount(numbers, weights=outcomes, minlength=BINS)
    )
    return float(gaps.sum() / counts.sum())


def merit(level: str, judgement: Judgement) -> float:
    """Return what the best pass over the examples is chosen by on dev.

    Human-defined difficulty is balanced, so that F1 would prefer to call everything difficult; there it is accuracy.
    """
    return judgement.accuracy if level == "human" else judgement.f1 or 0.0
