"""What a method is: what it builds and trains in which stages, how it predicts, and what each prediction costs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from hashee.data import Task
from hashee.data.tokenized import Tokenized
from hashee.errors import InputError
from hashee.training.evaluation import Predictions
from hashee.training.hash_exits import HashExits
from hashee.training.processes import Processes
from hashee.training.stages import Choice, Fit


class Method(Protocol):
    """A way to make a model cheap. A new one is a file with such a class and one call of `register_method`."""

    @property
    def name(self) -> str:
        """Name in the setting `method`."""

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

    def run(self, model: Any, inputs: Mapping[str, Tensor], knob: float) -> Tensor:
        """Return the logits of a batch at an operating point as it runs in use: sequences may leave on the way.

        inputs: (batch, longest) each. Returns (batch, labels), or (batch, longest, labels) for tags.
        """

    def predict(self, model: Any, tokenized: Tokenized, processes: Processes, knob: float) -> Predictions:
        """Predict examples at an operating point in batches that `run`; processes share the work."""

    def sweep(
        self, model: Any, tokenized: Tokenized, processes: Processes, knobs: Sequence[float]
    ) -> list[Predictions]:
        """Return what `predict` returns at several operating points, with as little work as the method allows."""


METHODS: dict[str, Method] = {}
"""By name, as `hashee fit --method` and `hashee study run --method` take them."""


def register_method(method: Method) -> None:
    """Make a method available under its name, which must be new."""
    if method.name in METHODS:
        raise InputError(f"there is a method {method.name!r} already; choose another name")
    METHODS[method.name] = method


def method_named(name: str) -> Method:
    """Return the method of a name."""
    if name not in METHODS:
        raise InputError(f"unknown method {name!r}; choose from {', '.join(METHODS)}")
    return METHODS[name]


register_method(HashExits())
