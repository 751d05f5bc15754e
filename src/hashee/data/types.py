"""Types of tasks: each owns its head, its targets and how logits become predictions. A new one is one class here."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hashee.data.task import Kind, Task

Array = NDArray[Any]


class TaskType(Protocol):
    """What differs between classes, labels, scores and tags."""

    head: str
    """How the names of transformers' classes with such a head end; `Auto` classes are called likewise."""
    problem_type: str | None
    """What transformers' config calls it; None where it has no name for it."""

    def targets(self, targets: Sequence[Any]) -> Array | list[Array]:
        """Return targets as arrays: (examples, ...), or one (words,) for each example."""

    def decode(self, task: Task, logits: Array) -> Any:
        """Return the prediction for an example. logits: (labels,), or for tags (words, labels)."""


class Classes:
    """One of several classes for each text."""

    head = "ForSequenceClassification"
    problem_type: str | None = "single_label_classification"

    def targets(self, targets: Sequence[Any]) -> Array | list[Array]:
        """Return (examples,) classes."""
        return np.asarray(targets, dtype=np.int64)

    def decode(self, task: Task, logits: Array) -> Any:
        """Return the class with the largest logit."""
        return int(logits.argmax())


class Labels:
    """Any number of labels for each text."""

    head = "ForSequenceClassification"
    problem_type: str | None = "multi_label_classification"

    def targets(self, targets: Sequence[Any]) -> Array | list[Array]:
        """Return (examples, labels), 1 where a label applies."""
        return np.asarray(targets, dtype=np.float32)

    def decode(self, task: Task, logits: Array) -> Any:
        """Return for each label whether its probability is above one half."""
        return tuple(int(value > 0) for value in logits)


class Score:
    """A number for each text."""

    head = "ForSequenceClassification"
    problem_type: str | None = "regression"

    def targets(self, targets: Sequence[Any]) -> Array | list[Array]:
        """Return (examples,) scores."""
        return np.asarray(targets, dtype=np.float32)

    def decode(self, task: Task, logits: Array) -> Any:
        """Return the only output."""
        return float(logits[0])


class Tags:
    """A tag for each word."""

    head = "ForTokenClassification"
    problem_type: str | None = None

    def targets(self, targets: Sequence[Any]) -> Array | list[Array]:
        """Return (words,) tags of each example."""
        return [np.asarray(tags, dtype=np.int64) for tags in targets]

    def decode(self, task: Task, logits: Array) -> Any:
        """Return the tag with the largest logit; a word that the model never saw is outside every span."""
        outside = task.labels.index("O") if "O" in task.labels else 0
        return tuple(outside if np.isnan(word[0]) else int(word.argmax()) for word in logits)


TASK_TYPES: dict[Kind, TaskType] = {
    Kind.CLASSES: Classes(),
    Kind.LABELS: Labels(),
    Kind.SCORE: Score(),
    Kind.TAGS: Tags(),
}
