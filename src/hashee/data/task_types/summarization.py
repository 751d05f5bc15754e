"""A short text for each text: summaries, titles, subject lines, and with the same code translations."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hashee.data.reading import Rows
from hashee.data.registry import Layout
from hashee.data.row_files import is_encodable
from hashee.data.task import SUMMARY_RECIPE, Kind, Target, Task
from hashee.data.task_types.losses import cross_entropy, divergence
from hashee.data.task_types.rouge import chrf, rouge
from hashee.data.task_types.task_type import Agreement, Array, Parts, TaskType
from hashee.data.texts import HALF_PAIR
from hashee.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor


def _rouge(task: Task, predictions: list[str], targets: list[str]) -> Parts:
    return rouge(predictions, targets)


def _chrf(task: Task, predictions: list[str], targets: list[str]) -> Parts:
    return {"chrf": chrf(predictions, targets)}


@dataclass(frozen=True, repr=False)
class Summarization(TaskType):
    """A text is read and another one is written, token by token; what a model gives for an example is that text."""

    label_smoothing: float = 0.1
    """Share of the loss that all tokens have alike; BART's."""

    kind = Kind.SUMMARIES
    head = "ForSeq2SeqLM"
    problem_type = None
    pipeline = "summarization"
    target_name = "summary"
    named_outputs = False
    right_or_wrong = False
    recipe = SUMMARY_RECIPE
    writes_text = True
    metrics = {"rouge1": _rouge, "rouge2": _rouge, "rougeL": _rouge, "chrf": _chrf}

    def smoothed(self, share: float) -> "TaskType":
        """Return the type with another share of label smoothing."""
        return replace(self, label_smoothing=share)

    def label_names(self, rows: Rows) -> tuple[str, ...]:
        """Return none: summaries have no labels."""
        return ()

    def read_targets(self, rows: Rows, task: Task, train: Rows, layout: Layout | None) -> list[Target]:
        """Return the summaries."""
        return [_as_summary(summary, rows, index) for index, summary in enumerate(rows.labels or ())]

    def targets(self, targets: Sequence[Any]) -> Array | list[Array]:
        """Return (examples,) texts; models learn from their tokens, see `hashee.data.summaries`."""
        return np.asarray(targets, dtype=object)

    def loss(self, logits: "Tensor", targets: "Tensor") -> "Tensor":
        """Return the cross-entropy with label smoothing. logits: (tokens, vocabulary); targets: (tokens,)."""
        return cross_entropy(logits, targets, self.label_smoothing)

    def distillation_loss(self, logits: "Tensor", teacher_logits: "Tensor", temperature: float) -> "Tensor":
        """Return the Kullback-Leibler divergence of every token. Both: (tokens, vocabulary)."""
        return divergence(logits, teacher_logits, temperature)

    def text_labels(self, targets: Sequence[Any]) -> list[Any] | None:
        """Return None: hardly two texts have the same summary."""
        return None

    def decode(self, task: Task, logits: Any) -> Any:
        """Return the text that was written, as it is."""
        return logits

    def default_metric(self, labels: Sequence[str]) -> str:
        """Return ROUGE-1."""
        return "rouge1"

    def checked(self, task: Task, values: Any, what: str) -> Any:
        """Return a list of texts."""
        texts = list(values)
        for index, text in enumerate(texts):
            if not isinstance(text, str):
                raise InputError(f"{what} {index} of {task.name} is a {type(text).__name__}; a summary is a string")
        return texts

    def example_loss(self, logits: Any, target: Any) -> float:
        """Return how much of the summary is missed: 1 - ROUGE-1."""
        return 1 - rouge([logits], [target])["rouge1"]

    def confidence(self, logits: Any) -> float | None:
        """Return None: the probability of a text says little of its quality."""
        return None

    def agreement(self, predictions: Sequence[Any], others: Sequence[Any]) -> Agreement:
        """Return chrF between the texts of two models."""
        return Agreement("chrf", chrf(predictions, others))

    def names(self, task: Task, text: Any, target: Any, prediction: Any) -> tuple[str, str]:
        """Return both summaries."""
        return target, prediction


def _as_summary(summary: Any, rows: Rows, index: int) -> str:
    if not isinstance(summary, str):
        raise InputError(
            f"{rows.location(index)}: the summary is of type {type(summary).__name__}; it must be a string: name its "
            f"column with --label-column (Python: Columns(label=...))"
        )
    if not is_encodable(summary):
        raise InputError(f"{rows.location(index)}: the summary holds {HALF_PAIR}")
    return summary
