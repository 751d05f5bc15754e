"""How good predictions are, by the metric of a task."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hashee.data.task import Kind, Task, TaskData
from hashee.data.task_types import TASK_TYPES, type_of
from hashee.data.task_types.task_type import ComputeMetric
from hashee.errors import InputError


@dataclass(frozen=True)
class Metric:
    """A metric of one type of task; use it through `score`, which checks and prepares predictions and targets."""

    kind: Kind
    measure: ComputeMetric
    """(task, predictions, targets) -> the metric under its own name, with the metrics that it is made of."""


METRICS: dict[str, Metric] = {
    name: Metric(kind, compute) for kind, task_type in TASK_TYPES.items() for name, compute in task_type.metrics.items()
}
"""Every metric by name."""


def judged_by(data: TaskData, metric: str | None) -> TaskData:
    """Return a task that is judged by another metric of its kind; None leaves it as it is."""
    if metric is None:
        return data
    known = type_of(data.task).metrics
    if metric not in known:
        raise InputError(f"{data.task.name} is {data.task.kind}, whose metrics are {', '.join(known)}, not {metric!r}")
    return replace(data, task=replace(data.task, metric=metric))


def score(task: Task, predictions: Sequence[Any], targets: Sequence[Any]) -> dict[str, float]:
    """Judge predictions by the task's metric: all its parts, and the metric itself also as "score"; 1 is best.

    predictions, targets: one of each per example, as `Target` describes them (lists, arrays or tensors).
    """
    if task.metric not in METRICS:
        raise InputError(f"{task.name} has the metric {task.metric!r}; there are: {', '.join(METRICS)}")
    if len(predictions) != len(targets):
        raise InputError(f"there are {len(predictions)} predictions for {len(targets)} targets; make one for each")
    if not len(targets):
        raise InputError(f"there are no predictions of {task.name} to score")
    metric = METRICS[task.metric]
    if metric.kind is not task.kind:
        raise InputError(
            f"{task.metric} is a metric of {metric.kind}, but {task.name} is {task.kind}; choose another metric"
        )
    checked = type_of(task).checked
    parts = metric.measure(task, checked(task, predictions, "prediction"), checked(task, targets, "target"))
    return {**parts, "score": parts[task.metric]}
