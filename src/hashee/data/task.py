"""What a task is: its labels, its metric and its recipe, and the examples of its splits."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from hashee.data.texts import Text

Words: TypeAlias = tuple[str, ...]
Target: TypeAlias = int | float | str | tuple[int, ...]
"""A class, a score, a summary, or for every label whether it applies (multi-label), or for every word its tag."""


class Kind(StrEnum):
    """What is predicted."""

    CLASSES = "classification"
    LABELS = "multi-label"
    SCORE = "regression"
    TAGS = "tagging"
    SUMMARIES = "summarization"


@dataclass(frozen=True)
class Recipe:
    """How a task is trained; the defaults are the paper's for its larger tasks."""

    learning_rate: float = 5e-5
    batch_size: int = 32
    """Examples per optimizer step, over all processes."""
    epochs: float = 3.0
    warmup_ratio: float = 0.1
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0


SUMMARY_RECIPE = Recipe(learning_rate=3e-5, epochs=5.0, warmup_ratio=0.025, max_grad_norm=0.1)
"""BART's for summaries, which the paper takes over: 500 steps of 20,000 warm up, gradients are clipped to 0.1."""


@dataclass(frozen=True)
class Task:
    """What is learnt, and by which metric it is judged."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    """Names of the classes, labels or tags by id; empty for scores and summaries."""
    metric: str
    """Name in `hashee.data.METRICS`; higher is better."""
    pair: bool = False
    """Whether an example is two texts."""
    recipe: Recipe = field(default_factory=Recipe)


@dataclass(frozen=True)
class Examples:
    """One split of a task, in file order."""

    texts: Sequence[Text | Words]
    """Texts or pairs; the words of each text if words are tagged."""
    targets: Sequence[Target] | None
    """None where the labels are not known."""

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True)
class TaskData:
    """A task with its examples."""

    task: Task
    train: Examples
    dev: Examples
    test: Examples | None
    fingerprint: str
    """SHA-256 of everything above, so that two runs on the same data can be recognised."""
    notes: tuple[str, ...] = ()
    """What was done to the data that its user should know, such as a dev split cut from train."""
