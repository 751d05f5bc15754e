"""From logits to predictions of the kind of a task's targets, and how good they are."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hashee.data.metrics import score
from hashee.data.task import Kind, Task

Array = NDArray[Any]


def predictions(task: Task, logits: Sequence[Array]) -> list[Any]:
    """Turn the logits of each example into a prediction of the kind of the task's targets.

    logits: (labels,) for each text, or for tags (words, labels) with NaN for words cut off.
    """
    if task.kind is Kind.SCORE:
        return [float(row[0]) for row in logits]
    if task.kind is Kind.LABELS:
        return [tuple(int(value > 0) for value in row) for row in logits]
    if task.kind is Kind.CLASSES:
        return [int(row.argmax()) for row in logits]
    # A word that the model never saw is outside every span.
    outside = task.labels.index("O") if "O" in task.labels else 0
    return [tuple(outside if np.isnan(word[0]) else int(word.argmax()) for word in row) for row in logits]


def scores(task: Task, logits: Sequence[Array], targets: Sequence[Any]) -> dict[str, float]:
    """Return the task's metrics by name, `score` among them."""
    return {name: float(value) for name, value in score(task, predictions(task, logits), targets).items()}
