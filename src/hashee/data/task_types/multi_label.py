"""Any number of labels for each text."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hashee.data.kinds import is_multi_hot
from hashee.data.reading import Rows
from hashee.data.registry import Layout
from hashee.data.targets import LabelIds, refuse_other_than_lists, refuse_unknown, sorted_names
from hashee.data.task import Kind, Target, Task
from hashee.data.task_types.checks import precision_recall_f1
from hashee.data.task_types.task_type import Array, Parts, TaskType
from hashee.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor


def _micro_f1(task: Task, predictions: Array, targets: Array) -> Parts:
    hits = int((predictions & targets).sum())
    return {
        **precision_recall_f1("micro", hits, int(predictions.sum()), int(targets.sum())),
        "exact_match": float((predictions == targets).all(axis=1).mean()),
    }


class MultiLabel(TaskType):
    """Any number of labels for each text; a target is 0 or 1 for every label."""

    kind = Kind.LABELS
    head = "ForSequenceClassification"
    problem_type = "multi_label_classification"
    target_name = "set of labels"
    metrics = {"micro_f1": _micro_f1}

    def label_names(self, rows: Rows) -> tuple[str, ...]:
        """Return the labels: those of the columns, or of the lists in one column."""
        assert rows.labels is not None
        if rows.one_column_each:
            return rows.columns.label
        refuse_other_than_lists(rows)
        if is_multi_hot(rows):
            return rows.class_names() or tuple(map(str, range(len(rows.labels[0]))))
        return rows.class_names() or sorted_names(name for names in rows.labels for name in names)

    def read_targets(self, rows: Rows, task: Task, train: Rows, layout: Layout | None) -> list[Target]:
        """Return 0 or 1 for every label."""
        assert rows.labels is not None
        if rows.one_column_each:
            return _zeros_and_ones(rows, task)
        refuse_other_than_lists(rows)
        if is_multi_hot(train):
            return _zeros_and_ones(rows, task)
        ids = LabelIds.of(rows, task, layout)
        refuse_unknown(rows, task, rows.labels, ids)
        applying = [{ids.known(name) for name in names} for names in rows.labels]
        return [tuple(int(label in applies) for label in range(len(task.labels))) for applies in applying]

    def targets(self, targets: Sequence[Any]) -> Array | list[Array]:
        """Return (examples, labels), 1 where a label applies."""
        return np.asarray(targets, dtype=np.float32)

    def loss(self, logits: "Tensor", targets: "Tensor") -> "Tensor":
        """Return the binary cross-entropy, averaged over the labels."""
        from torch.nn import functional as F  # noqa: PLC0415

        return F.binary_cross_entropy_with_logits(logits, targets.float(), reduction="none").mean(dim=1).sum()

    def distillation_loss(self, logits: "Tensor", teacher_logits: "Tensor", temperature: float) -> "Tensor":
        """Return the binary cross-entropy with the teacher's probabilities, averaged over the labels."""
        soft = teacher_logits.div(temperature).sigmoid()
        return temperature**2 * self.loss(logits / temperature, soft)

    def text_labels(self, targets: Sequence[Any]) -> list[Any] | None:
        """Let texts with the same set of labels be of one class."""
        return [str(target) for target in targets]

    def decode(self, task: Task, logits: Array) -> Any:
        """Return for each label whether its probability is above one half."""
        return tuple(int(value > 0) for value in logits)

    def default_metric(self, labels: Sequence[str]) -> str:
        """Return micro-averaged F1."""
        return "micro_f1"

    def checked(self, task: Task, values: Any, what: str) -> Any:
        """Return (examples, labels) of 0 and 1."""
        array = np.stack([np.asarray(value) for value in values])
        if array.ndim != 2 or array.shape[1] != len(task.labels) or not np.isin(array, (0, 1)).all():
            raise InputError(
                f"each {what} of {task.name} must be {len(task.labels)} zeros and ones, one for every label"
            )
        return array.astype(np.int64)

    def example_loss(self, logits: Array, target: Any) -> float:
        """Return the binary cross-entropy, averaged over the labels."""
        signs = 2 * np.asarray(target) - 1
        return float(np.logaddexp(0, -signs * logits.astype(np.float64)).mean())

    def confidence(self, logits: Array) -> float | None:
        """Return the probability of the least certain label."""
        return float(np.exp(-np.logaddexp(0, -np.abs(logits.astype(np.float64)))).min())

    def names(self, task: Task, text: Any, target: Any, prediction: Any) -> tuple[str, str]:
        """Return the labels that apply, with commas."""
        return _applying(task, target), _applying(task, prediction)


def _applying(task: Task, row: Sequence[int]) -> str:
    return ", ".join(name for name, applies in zip(task.labels, row, strict=True) if applies) or "none"


def _zeros_and_ones(rows: Rows, task: Task) -> list[Target]:
    assert rows.labels is not None
    for index, cells in enumerate(rows.labels):
        if len(cells) != len(task.labels):
            raise InputError(f"{rows.location(index)}: {len(cells)} zeros and ones for {len(task.labels)} labels")
        for name, cell in zip(task.labels, cells, strict=True):
            if cell not in (0, 1):
                raise InputError(f"{rows.location(index)}: {name!r} is {cell!r}; it must be 0 or 1")
    return [tuple(map(int, cells)) for cells in rows.labels]
