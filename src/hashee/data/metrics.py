"""How good predictions are."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hashee.data.spans import is_bio, span_counts
from hashee.data.task import Kind, Task
from hashee.errors import InputError
from hashee.packages import require

Array: TypeAlias = NDArray[Any]
Parts: TypeAlias = dict[str, float]


@dataclass(frozen=True)
class Metric:
    """A measure of one kind of task; use it through `score`, which checks and prepares what it is given."""

    kind: Kind
    measure: Callable[[Task, Any, Any], Parts]
    """(task, predictions, targets) -> the measure under its own name, with what it is made of."""


def score(task: Task, predictions: Sequence[Any], targets: Sequence[Any]) -> dict[str, float]:
    """Measure predictions by the task's metric: all its parts, and the metric itself also as "score"; 1 is best.

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
        raise InputError(f"{task.metric} measures {metric.kind}, but {task.name} is {task.kind}; choose another metric")
    prepare = _PREPARE[task.kind]
    parts = metric.measure(task, prepare(task, predictions, "prediction"), prepare(task, targets, "target"))
    return {**parts, "score": parts[task.metric]}


def default_metric(kind: Kind, labels: Sequence[str]) -> str:
    """Return the usual measure of a kind of task."""
    if kind is Kind.TAGS:
        return "span_f1" if is_bio(labels) else "tag_accuracy"
    return {Kind.CLASSES: "accuracy", Kind.LABELS: "micro_f1", Kind.SCORE: "pearson_and_spearman"}[kind]


# --- classes -----------------------------------------------------------------------------------------------


def _accuracy(task: Task, predictions: Array, targets: Array) -> Parts:
    return {"accuracy": float(_sklearn().accuracy_score(targets, predictions))}


def _accuracy_and_f1(task: Task, predictions: Array, targets: Array) -> Parts:
    if len(task.labels) != 2:
        raise InputError(f"accuracy_and_f1 is for two classes; {task.name} has {len(task.labels)}; use macro_f1")
    f1 = float(_sklearn().f1_score(targets, predictions, pos_label=1, zero_division=0))
    parts = _accuracy(task, predictions, targets)
    return {**parts, "f1": f1, "accuracy_and_f1": (parts["accuracy"] + f1) / 2}


def _macro_f1(task: Task, predictions: Array, targets: Array) -> Parts:
    f1 = _sklearn().f1_score(targets, predictions, average="macro", zero_division=0)
    return {**_accuracy(task, predictions, targets), "macro_f1": float(f1)}


def _matthews(task: Task, predictions: Array, targets: Array) -> Parts:
    # Without the labels, scikit-learn warns of predictions that are all the same.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {"matthews": float(_sklearn().matthews_corrcoef(targets, predictions))}


# --- scores ------------------------------------------------------------------------------------------------


def _pearson(task: Task, predictions: Array, targets: Array) -> Parts:
    return {"pearson": _correlation("pearsonr", predictions, targets)}


def _spearman(task: Task, predictions: Array, targets: Array) -> Parts:
    return {"spearman": _correlation("spearmanr", predictions, targets)}


def _pearson_and_spearman(task: Task, predictions: Array, targets: Array) -> Parts:
    parts = _pearson(task, predictions, targets) | _spearman(task, predictions, targets)
    return {**parts, "pearson_and_spearman": sum(parts.values()) / 2}


def _correlation(name: str, predictions: Array, targets: Array) -> float:
    """Return a correlation, or 0 where it is undefined: a constant tells nothing about anything."""
    if len(targets) < 2:
        return 0.0
    stats = require("scipy.stats", "train", "measuring correlation")
    with warnings.catch_warnings():
        # Of constants, for which it returns NaN, and of nearly constant numbers.
        warnings.simplefilter("ignore")
        correlation = float(getattr(stats, name)(predictions, targets).statistic)
    return correlation if np.isfinite(correlation) else 0.0


# --- several labels, and tags ------------------------------------------------------------------------------


def _micro_f1(task: Task, predictions: Array, targets: Array) -> Parts:
    hits = int((predictions & targets).sum())
    return {
        **_precision_recall_f1("micro", hits, int(predictions.sum()), int(targets.sum())),
        "exact_match": float((predictions == targets).all(axis=1).mean()),
    }


def _span_f1(task: Task, predictions: list[Array], targets: list[Array]) -> Parts:
    if not is_bio(task.labels):
        raise InputError(f"span_f1 needs BIO tags; {task.name} has {', '.join(task.labels[:5])}; use tag_accuracy")
    parts = _tag_accuracy(task, predictions, targets)
    predicted, there = ([[task.labels[tag] for tag in tags] for tags in each] for each in (predictions, targets))
    counts = span_counts(predicted, there)
    return {**parts, **_precision_recall_f1("span", *counts)}


def _tag_accuracy(task: Task, predictions: list[Array], targets: list[Array]) -> Parts:
    for number, (predicted, target) in enumerate(zip(predictions, targets, strict=True)):
        if len(predicted) != len(target):
            raise InputError(f"prediction {number} of {task.name} has {len(predicted)} tags for {len(target)} words")
    return {"tag_accuracy": float((np.concatenate(predictions) == np.concatenate(targets)).mean())}


def _precision_recall_f1(name: str, hits: int, predicted: int, there: int) -> Parts:
    return {
        f"{name}_precision": hits / max(predicted, 1),
        f"{name}_recall": hits / max(there, 1),
        f"{name}_f1": 2 * hits / max(predicted + there, 1),
    }


# --- what can be measured ----------------------------------------------------------------------------------


def _class_ids(task: Task, values: Any, what: str) -> Array:
    return _ids(task, _one_axis(values, what, "the id of a class"), what)


def _scores(task: Task, values: Any, what: str) -> Array:
    array = _one_axis(values, what, "a number").astype(np.float64)
    if not np.isfinite(array).all():
        raise InputError(f"{what} {int(np.flatnonzero(~np.isfinite(array))[0])} of {task.name} is not a finite number")
    return array


def _zeros_and_ones(task: Task, values: Any, what: str) -> Array:
    array = np.stack([np.asarray(value) for value in values])
    if array.ndim != 2 or array.shape[1] != len(task.labels) or not np.isin(array, (0, 1)).all():
        raise InputError(f"each {what} of {task.name} must be {len(task.labels)} zeros and ones, one for every label")
    return array.astype(np.int64)


def _tag_ids(task: Task, values: Any, what: str) -> list[Array]:
    return [_ids(task, _one_axis(value, what, "the ids of its tags"), what) for value in values]


def _one_axis(values: Any, what: str, expected: str) -> Array:
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.number)):
        raise InputError(f"a {what} is {expected}; these have shape {array.shape} and type {array.dtype}")
    return array


def _ids(task: Task, array: Array, what: str) -> Array:
    if array.size and (array.min() < 0 or array.max() >= len(task.labels) or (array % 1 != 0).any()):
        raise InputError(
            f"the {what}s of {task.name} go from {array.min()} to {array.max()}; "
            f"they must be whole numbers from 0 to {len(task.labels) - 1}"
        )
    return array.astype(np.int64)


def _sklearn() -> Any:
    return require("sklearn.metrics", "train", "measuring quality")


_PREPARE: dict[Kind, Callable[[Task, Any, str], Any]] = {
    Kind.CLASSES: _class_ids,
    Kind.SCORE: _scores,
    Kind.LABELS: _zeros_and_ones,
    Kind.TAGS: _tag_ids,
}

METRICS: dict[str, Metric] = {
    "accuracy": Metric(Kind.CLASSES, _accuracy),
    "accuracy_and_f1": Metric(Kind.CLASSES, _accuracy_and_f1),
    "macro_f1": Metric(Kind.CLASSES, _macro_f1),
    "matthews": Metric(Kind.CLASSES, _matthews),
    "pearson": Metric(Kind.SCORE, _pearson),
    "spearman": Metric(Kind.SCORE, _spearman),
    "pearson_and_spearman": Metric(Kind.SCORE, _pearson_and_spearman),
    "micro_f1": Metric(Kind.LABELS, _micro_f1),
    "span_f1": Metric(Kind.TAGS, _span_f1),
    "tag_accuracy": Metric(Kind.TAGS, _tag_accuracy),
}
"""Every measure by name."""
