"""What a method is: what it builds and trains in which stages, how it predicts, and what each prediction costs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hashee.data.run_record import MacsRecord
from hashee.data.tokenized import Tokenized
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


class Method(Protocol):
    """A way to make a model cheap. A new one is a file with such a class and its name in `methods.py`."""

    @property
    def name(self) -> str:
        """What the setting `method` calls it."""

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
