"""A tag for each word."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hashee.data.reading import Rows
from hashee.data.registry import Layout
from hashee.data.spans import is_bio, span_counts
from hashee.data.targets import LabelIds, refuse_other_than_lists, refuse_unknown, sorted_names
from hashee.data.task import Kind, Target, Task
from hashee.data.task_types.checks import label_ids, one_axis, precision_recall_f1
from hashee.data.task_types.losses import cross_entropy, divergence, least_probability, mean_cross_entropy
from hashee.data.task_types.task_type import Agreement, Array, Parts, TaskType
from hashee.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor


def _span_f1(task: Task, predictions: list[Array], targets: list[Array]) -> Parts:
    if not is_bio(task.labels):
        raise InputError(f"span_f1 needs BIO tags; {task.name} has {', '.join(task.labels[:5])}; use tag_accuracy")
    parts = _tag_accuracy(task, predictions, targets)
    predicted, correct = ([[task.labels[tag] for tag in tags] for tags in each] for each in (predictions, targets))
    return {**parts, **precision_recall_f1("span", *span_counts(predicted, correct))}


def _tag_accuracy(task: Task, predictions: list[Array], targets: list[Array]) -> Parts:
    for number, (predicted, target) in enumerate(zip(predictions, targets, strict=True)):
        if len(predicted) != len(target):
            raise InputError(f"prediction {number} of {task.name} has {len(predicted)} tags for {len(target)} words")
    return {"tag_accuracy": float((np.concatenate(predictions) == np.concatenate(targets)).mean())}


class Tagging(TaskType):
    """A tag for each word of a text."""

    kind = Kind.TAGS
    head = "ForTokenClassification"
    problem_type = None
    pipeline = "token-classification"
    target_name = "tag"
    metrics = {"span_f1": _span_f1, "tag_accuracy": _tag_accuracy}
    tags_words = True

    def text(self, example: Any) -> Any:
        """Join the words to ordinary text: exit tables are counted on that, and users give it to the fitted model."""
        return " ".join(example)

    def label_names(self, rows: Rows) -> tuple[str, ...]:
        """Return the tags."""
        assert rows.labels is not None
        if rows.one_column_each:
            return rows.columns.label
        refuse_other_than_lists(rows)
        return rows.class_names() or sorted_names(tag for tags in rows.labels for tag in tags)

    def read_targets(self, rows: Rows, task: Task, train: Rows, layout: Layout | None) -> list[Target]:
        """Return the ids of the tags of each text, one for each word."""
        assert rows.labels is not None
        refuse_other_than_lists(rows)
        for index, (words, tags) in enumerate(zip(rows.texts, rows.labels, strict=True)):
            if len(words) != len(tags):
                raise InputError(
                    f"{rows.location(index)}: {len(words)} words but {len(tags)} tags; give each word one tag"
                )
        ids = LabelIds.of(rows, task, layout)
        refuse_unknown(rows, task, rows.labels, ids)
        return [tuple(map(ids.known, tags)) for tags in rows.labels]

    def distinct(self, targets: Sequence[Target]) -> set[Any]:
        """Return the different tags of all words."""
        return {tag for target in targets if isinstance(target, tuple) for tag in target}

    def targets(self, targets: Sequence[Any]) -> Array | list[Array]:
        """Return (words,) tags of each example."""
        return [np.asarray(tags, dtype=np.int64) for tags in targets]

    def loss(self, logits: "Tensor", targets: "Tensor") -> "Tensor":
        """Return the cross-entropy of all words."""
        return cross_entropy(logits, targets)

    def distillation_loss(self, logits: "Tensor", teacher_logits: "Tensor", temperature: float) -> "Tensor":
        """Return the Kullback-Leibler divergence of all words."""
        return divergence(logits, teacher_logits, temperature)

    def text_labels(self, targets: Sequence[Any]) -> list[Any] | None:
        """Return None: words have the labels."""
        return None

    def decode(self, task: Task, logits: Array) -> Any:
        """Return the tag with the largest logit; a word that the model never saw is outside every span."""
        outside = task.labels.index("O") if "O" in task.labels else 0
        return tuple(outside if np.isnan(word[0]) else int(word.argmax()) for word in logits)

    def default_metric(self, labels: Sequence[str]) -> str:
        """Return F1 of spans for BIO tags, accuracy for others."""
        return "span_f1" if is_bio(labels) else "tag_accuracy"

    def checked(self, task: Task, values: Any, what: str) -> Any:
        """Return (words,) ids of tags for each example."""
        return [label_ids(task, one_axis(value, what, "the ids of its tags"), what) for value in values]

    def example_loss(self, logits: Array, target: Any) -> float:
        """Return the mean cross-entropy of the words that the model saw."""
        return mean_cross_entropy(logits, np.asarray(target))

    def confidence(self, logits: Array) -> float | None:
        """Return the probability of the least certain tag; None if the model saw no word."""
        return least_probability(logits)

    def agreement(self, predictions: Sequence[Any], others: Sequence[Any]) -> Agreement:
        """Return the share of words with equal tags."""
        words, other_words = ([tag for tags in each for tag in tags] for each in (predictions, others))
        return super().agreement(words, other_words)

    def names(self, task: Task, text: Any, target: Any, prediction: Any) -> tuple[str, str]:
        """Return the words whose tags differ, each with its tag."""
        differ = [(word, *tags) for word, *tags in zip(text, target, prediction, strict=True) if tags[0] != tags[1]]
        gold = " ".join(f"{word}/{task.labels[tag]}" for word, tag, _ in differ)
        predicted = " ".join(f"{word}/{task.labels[tag]}" for word, _, tag in differ)
        return gold or "none differs", predicted or "none differs"
