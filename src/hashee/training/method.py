"""What a method is (what it trains in which stages, how it predicts, what each prediction costs), and all of them."""

from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hashee.data.run_record import MacsRecord
from hashee.data.tokenized import Tokenized
from hashee.errors import InputError
from hashee.training.evaluation import Array
from hashee.training.hash_exits import HashExits
from hashee.training.processes import Processes
from hashee.training.stages import Choice, Fit


class Method(Protocol):
    """A way to make a model cheaper. A new one is a file with such a class, and its registration below."""

    @property
    def name(self) -> str:
        """Its value of the setting `method`."""

    def train(self, fit: Fit) -> Choice:
        """Build models and train them in stages, each made once and found again when a run is resumed."""

    def open(self, folder: Path) -> Any:
        """Return the model in a folder, in eval mode."""

    def predict(self, model: Any, encoded: Tokenized, processes: Processes) -> list[Array]:
        """Return the logits for each example, (labels,), or for tags (words, labels); processes share the work."""

    def macs(self, model: Any, encoded: Tokenized) -> NDArray[np.int64]:
        """Return the multiply-accumulates that the prediction for each example costs: (examples,)."""

    def cost(self, choice: Choice, model: Any, split: str, encoded: Tokenized) -> MacsRecord:
        """Return what a split costs per text, against the whole backbone."""


METHODS: dict[str, Method] = {}
"""By name, as `hashee fit --method` takes them."""


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
