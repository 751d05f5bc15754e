"""A number for each text."""

import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hashee.data.reading import Rows
from hashee.data.registry import Layout
from hashee.data.task import Kind, Target, Task
from hashee.data.task_types.checks import as_number, one_axis, unfit_prediction
from hashee.data.task_types.task_type import Agreement, Array, Parts, TaskType
from hashee.errors import InputError
from hashee.packages import require

if TYPE_CHECKING:
    from torch import Tensor


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


class Regression(TaskType):
    """A score, any number, for each text."""

    kind = Kind.SCORE
    head = "ForSequenceClassification"
    problem_type = "regression"
    target_name = "score"
    named_outputs = False
    right_or_wrong = False
    metrics = {"pearson": _pearson, "spearman": _spearman, "pearson_and_spearman": _pearson_and_spearman}

    def label_names(self, rows: Rows) -> tuple[str, ...]:
        """Return none: scores have no labels."""
        return ()

    def read_targets(self, rows: Rows, task: Task, train: Rows, layout: Layout | None) -> list[Target]:
        """Return the scores."""
        return [_as_score(score, rows, index) for index, score in enumerate(rows.labels or ())]

    def stratified(self, order: list[int], targets: Sequence[Any]) -> list[int]:
        """Sort by score, so that every range of scores gives its share."""
        return sorted(order, key=lambda index: targets[index])

    def targets(self, targets: Sequence[Any]) -> Array | list[Array]:
        """Return (examples,) scores."""
        return np.asarray(targets, dtype=np.float32)

    def loss(self, logits: "Tensor", targets: "Tensor") -> "Tensor":
        """Return the squared error."""
        from torch.nn import functional as F  # noqa: PLC0415

        return F.mse_loss(logits.squeeze(-1), targets.float(), reduction="sum")

    def distillation_loss(self, logits: "Tensor", teacher_logits: "Tensor", temperature: float) -> "Tensor":
        """Return the squared difference; scores have no temperature."""
        from torch.nn import functional as F  # noqa: PLC0415

        return F.mse_loss(logits, teacher_logits, reduction="sum")

    def decode(self, task: Task, logits: Array) -> Any:
        """Return the only output."""
        return float(logits[0])

    def default_metric(self, labels: Sequence[str]) -> str:
        """Return the mean of Pearson's and Spearman's correlations."""
        return "pearson_and_spearman"

    def checked(self, task: Task, values: Any, what: str) -> Any:
        """Return (examples,) finite numbers."""
        array = one_axis(values, what, "a number").astype(np.float64)
        if not np.isfinite(array).all():
            index = int(np.flatnonzero(~np.isfinite(array))[0])
            raise InputError(f"{what} {index} of {task.name} is not a finite number")
        return array

    def example_loss(self, logits: Array, target: Any) -> float:
        """Return the absolute error."""
        return float(abs(float(logits[0]) - target))

    def confidence(self, logits: Array) -> float | None:
        """Return None: scores have no probability."""
        return None

    def agreement(self, predictions: Sequence[Any], others: Sequence[Any]) -> Agreement:
        """Return Pearson's correlation, 0 where one model always predicts the same."""
        one, other = np.asarray(predictions, dtype=np.float64), np.asarray(others, dtype=np.float64)
        if np.array_equal(one, other):
            return Agreement("pearson", 1.0)
        if np.ptp(one) == 0 or np.ptp(other) == 0:
            return Agreement("pearson", 0.0)
        return Agreement("pearson", float(np.corrcoef(one, other)[0, 1]))

    def names(self, task: Task, text: Any, target: Any, prediction: Any) -> tuple[str, str]:
        """Return both scores with three digits."""
        return f"{target:.3g}", f"{prediction:.3g}"

    def submission_field(self, task: Task, index: int, prediction: Any, names: bool) -> str:
        """Return a score with three decimals."""
        number = as_number(prediction)
        if not math.isfinite(number):
            raise unfit_prediction(task, index, prediction, "a finite number")
        return f"{number:.3f}"


def _as_score(score: Any, rows: Rows, index: int) -> float:
    if isinstance(score, int | float) and math.isfinite(score):
        return float(score)
    raise InputError(f"{rows.location(index)}: the score is {score!r}; it must be a finite number")
