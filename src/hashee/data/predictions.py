"""From logits to predictions in the form of a task's targets, and how good they are."""

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from hashee.data.metrics import score
from hashee.data.task import Task
from hashee.data.task_types import type_of

Array = NDArray[Any]


def predictions(task: Task, logits: Sequence[Array]) -> list[Any]:
    """Turn the logits of each example into a prediction in the form of the task's targets.

    logits: (labels,) for each text, or for tags (words, labels) with NaN for truncated words.
    """
    decode = type_of(task).decode
    return [decode(task, row) for row in logits]


def scores(task: Task, logits: Sequence[Array], targets: Sequence[Any]) -> dict[str, float]:
    """Return the task's metrics by name, `score` among them."""
    return {name: float(value) for name, value in score(task, predictions(task, logits), targets).items()}
