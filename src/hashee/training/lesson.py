"""What a model is trained for, and models with tables on the way to it."""

from dataclasses import dataclass, field
from typing import Any

from hashee.data.tokenized import Tokenized
from hashee.tables.table import ExitTable
from hashee.training.objective import Objective
from hashee.training.teacher import Teacher


@dataclass(frozen=True)
class Lesson:
    """What a model is trained for, on which examples, and what teaches it."""

    objective: Objective
    train: Tokenized
    teacher: Teacher | None = None
    depends: dict[str, Any] = field(default_factory=dict)
    """What the trained model depends on beyond its weights, the labelled data, the recipe and the settings."""


@dataclass(frozen=True)
class WithTable:
    """A model with a table before it is trained."""

    model: Any
    table: ExitTable
    seconds: float
    """That making the table took."""

    @property
    def depends(self) -> dict[str, Any]:
        """What a model that is trained from it depends on."""
        return {"table": self.table.fingerprint}


@dataclass(frozen=True)
class Converted(WithTable):
    """A model with a table before it is trained, and what it is trained for."""

    lesson: Lesson
