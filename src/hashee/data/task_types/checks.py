"""What several types of tasks share when predictions are judged: checks of values, and counts of hits."""

from typing import Any

import numpy as np

from hashee.data.task import Task
from hashee.data.task_types.task_type import Array, Parts
from hashee.errors import InputError
from hashee.packages import require


def one_axis(values: Any, what: str, expected: str) -> Array:
    """Return numbers as an array with one axis, or refuse them. what, expected: for messages."""
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.number)):
        raise InputError(f"a {what} is {expected}; these have shape {array.shape} and type {array.dtype}")
    return array


def label_ids(task: Task, array: Array, what: str) -> Array:
    """Return ids of the task's labels as integers, or refuse what is outside. array: (any number,)."""
    if array.size and (array.min() < 0 or array.max() >= len(task.labels) or (array % 1 != 0).any()):
        raise InputError(
            f"the {what}s of {task.name} go from {array.min()} to {array.max()}; "
            f"they must be whole numbers from 0 to {len(task.labels) - 1}"
        )
    return array.astype(np.int64)


def as_number(prediction: Any) -> float:
    """Return a prediction as a number, NaN if it is none."""
    try:
        return float(prediction)
    except (TypeError, ValueError):
        return float("nan")


def unfit_prediction(task: Task, index: int, prediction: Any, expected: str) -> InputError:
    """Return the error for a prediction that cannot be submitted."""
    return InputError(f"prediction {index} of {task.name} is {prediction!r}; it must be {expected}")


def precision_recall_f1(name: str, hits: int, predicted: int, correct: int) -> Parts:
    """Return three metrics from how many were found rightly, how many were predicted and how many there are."""
    return {
        f"{name}_precision": hits / max(predicted, 1),
        f"{name}_recall": hits / max(correct, 1),
        f"{name}_f1": 2 * hits / max(predicted + correct, 1),
    }


def sklearn_metrics() -> Any:
    """Return `sklearn.metrics`, imported when it is first needed."""
    return require("sklearn.metrics", "train", "measuring quality")
