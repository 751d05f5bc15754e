"""What a method is: what it builds and trains in which stages, how it predicts, and what each prediction costs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from hashee.cost.macs import Costs
from hashee.data import Task
from hashee.data.encoding import Encoded
from hashee.errors import InputError
from hashee.training.processes import Processes
from hashee.training.stages import Candidate, Dense, Fit

Array = NDArray[Any]


@dataclass(frozen=True)
class Choice:
    """Models that a method fitted, of which the best on dev is kept."""

    fit: Fit
    candidates: list[Candidate]
    search: dict[str, Any] | None = None
    """What was searched, and how good each point was."""
    dense: Dense | None = None
    """The dense model that they started from or are compared with, if there is one."""

    @property
    def best(self) -> Candidate:
        """The candidate with the best score on dev; the first of equals."""
        return max(self.candidates, key=lambda candidate: candidate.score)


@dataclass(frozen=True)
class Predictions:
    """What a method predicts for some examples at one operating point, and what each prediction cost."""

    logits: list[Array]
    """(labels,) for each example, or for tags (words, labels)."""
    costs: Costs
    """(examples,) each."""


class Method(Protocol):
    """A way to make a model cheap. A new one is a file with such a class and one call of `register_method`."""

    @property
    def name(self) -> str:
        """What the setting `method` calls it."""

    @property
    def knob(self) -> str:
        """What its operating points differ in: a threshold, a patience, layers, a speed-up."""

    def refusal(self, task: Task) -> str | None:
        """Say why the method does not apply to a task; None if it does."""

    def train(self, fit: Fit) -> Choice:
        """Build models and train them in stages, each made once and found again when a run is resumed."""

    def open(self, folder: Path) -> Any:
        """Return the model in a folder, in eval mode."""

    def knobs(self, model: Any) -> Sequence[float]:
        """Return the operating points that a model is compared at, the most costly first."""

    def predict(self, model: Any, tokenized: Encoded, processes: Processes, knob: float) -> Predictions:
        """Predict at an operating point as it runs in use; processes share the work."""

    def sweep(self, model: Any, tokenized: Encoded, processes: Processes, knobs: Sequence[float]) -> list[Predictions]:
        """Return what `predict` returns at several operating points, with as little work as the method allows."""


METHODS: dict[str, Method] = {}
"""Methods by name."""


def register_method(method: Method) -> None:
    """Make a method known under its name; a name is given once."""
    if method.name in METHODS:
        raise InputError(f"there is a method {method.name!r} already; choose another name")
    METHODS[method.name] = method


def method_named(name: str) -> Method:
    """Return the method of a name."""
    if name not in METHODS:
        raise InputError(f"unknown method {name!r}; choose from {', '.join(METHODS)}")
    return METHODS[name]
