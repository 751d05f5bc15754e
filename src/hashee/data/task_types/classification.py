"""One of several classes for each text."""

import warnings
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hashee.data.reading import Rows
from hashee.data.registry import Layout
from hashee.data.targets import LabelIds, refuse_unknown, sorted_names
from hashee.data.task import Kind, Target, Task
from hashee.data.task_types.checks import as_number, label_ids, one_axis, sklearn_metrics, unfit_prediction
from hashee.data.task_types.losses import cross_entropy, divergence, least_probability, mean_cross_entropy
from hashee.data.task_types.task_type import Array, Parts, TaskType
from hashee.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor


def _accuracy(task: Task, predictions: Array, targets: Array) -> Parts:
    return {"accuracy": float(sklearn_metrics().accuracy_score(targets, predictions))}


def _accuracy_and_f1(task: Task, predictions: Array, targets: Array) -> Parts:
    if len(task.labels) != 2:
        raise InputError(f"accuracy_and_f1 is for two classes; {task.name} has {len(task.labels)}; use macro_f1")
    f1 = float(sklearn_metrics().f1_score(targets, predictions, pos_label=1, zero_division=0))
    parts = _accuracy(task, predictions, targets)
    return {**parts, "f1": f1, "accuracy_and_f1": (parts["accuracy"] + f1) / 2}


def _macro_f1(task: Task, predictions: Array, targets: Array) -> Parts:
    f1 = sklearn_metrics().f1_score(targets, predictions, average="macro", zero_division=0)
    return {**_accuracy(task, predictions, targets), "macro_f1": float(f1)}


def _matthews(task: Task, predictions: Array, targets: Array) -> Parts:
    # Without the labels, scikit-learn warns of predictions that are all the same.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {"matthews": float(sklearn_metrics().matthews_corrcoef(targets, predictions))}


class Classification(TaskType):
    """One of several classes for each text."""

    kind = Kind.CLASSES
    head = "ForSequenceClassification"
    problem_type = "single_label_classification"
    target_name = "class"
    one_decision = True
    metrics = {
        "accuracy": _accuracy,
        "accuracy_and_f1": _accuracy_and_f1,
        "macro_f1": _macro_f1,
        "matthews": _matthews,
    }

    def label_names(self, rows: Rows) -> tuple[str, ...]:
        """Return the classes."""
        assert rows.labels is not None
        return rows.columns.label if rows.one_column_each else rows.class_names() or sorted_names(rows.labels)

    def read_targets(self, rows: Rows, task: Task, train: Rows, layout: Layout | None) -> list[Target]:
        """Return the id of each class."""
        assert rows.labels is not None
        if isinstance(rows.labels[0], list):
            raise InputError(f"{rows.location(0)}: the label is a list; a class is one name or number")
        ids = LabelIds.of(rows, task, layout)
        refuse_unknown(rows, task, [[label] for label in rows.labels], ids)
        return [ids.known(label) for label in rows.labels]

    def stratified(self, order: list[int], targets: Sequence[Any]) -> list[int]:
        """Sort by class; the only example of a class has to be trained on."""
        times = Counter(targets)
        return sorted((index for index in order if times[targets[index]] > 1), key=lambda index: targets[index])

    def targets(self, targets: Sequence[Any]) -> Array | list[Array]:
        """Return (examples,) classes."""
        return np.asarray(targets, dtype=np.int64)

    def loss(self, logits: "Tensor", targets: "Tensor") -> "Tensor":
        """Return the cross-entropy."""
        return cross_entropy(logits, targets)

    def distillation_loss(self, logits: "Tensor", teacher_logits: "Tensor", temperature: float) -> "Tensor":
        """Return the Kullback-Leibler divergence."""
        return divergence(logits, teacher_logits, temperature)

    def decode(self, task: Task, logits: Array) -> Any:
        """Return the class with the largest logit."""
        return int(logits.argmax())

    def default_metric(self, labels: Sequence[str]) -> str:
        """Return accuracy."""
        return "accuracy"

    def checked(self, task: Task, values: Any, what: str) -> Any:
        """Return (examples,) ids of classes."""
        return label_ids(task, one_axis(values, what, "the id of a class"), what)

    def example_loss(self, logits: Array, target: Any) -> float:
        """Return the cross-entropy."""
        return mean_cross_entropy(logits[None], np.array([target]))

    def confidence(self, logits: Array) -> float | None:
        """Return the probability of the predicted class."""
        return least_probability(logits[None])

    def names(self, task: Task, text: Any, target: Any, prediction: Any) -> tuple[str, str]:
        """Return the names of both classes."""
        return task.labels[target], task.labels[prediction]

    def submission_field(self, task: Task, index: int, prediction: Any, names: bool) -> str:
        """Return the name or the number of a class."""
        number = as_number(prediction)
        if number not in range(len(task.labels)):
            raise unfit_prediction(task, index, prediction, f"a class, 0 to {len(task.labels) - 1}")
        return task.labels[int(number)] if names else str(int(number))
