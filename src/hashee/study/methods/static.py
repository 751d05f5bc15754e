"""What methods share whose models run all of their layers for every text: a depth is one operating point."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from hashee.data import Task
from hashee.data.tokenized import Tokenized
from hashee.export.loading import load
from hashee.study.refusals import refuse_writing
from hashee.training.evaluation import Predictions
from hashee.training.hash_exits import HashExits
from hashee.training.processes import Processes
from hashee.training.stages import Choice, Fit


class Static(ABC):
    """A method whose models are shallower, and ordinary otherwise."""

    name: str
    knob = "layers"
    writes_text: ClassVar[bool] = False
    """Whether it applies to models that write text too."""

    @abstractmethod
    def train(self, fit: Fit) -> Choice:
        """Build models with fewer layers and train them in stages."""

    def refusal(self, task: Task) -> str | None:
        """Refuse models that write text, unless the method knows their decoders."""
        return None if self.writes_text else refuse_writing(self.name, task)

    def open(self, folder: Path) -> Any:
        """Return the shallower model on the packed engine."""
        return load(folder)

    def knobs(self, model: Any) -> Sequence[float]:
        """Return the layers that the model has."""
        return (float(model.exit_table.num_layers),)

    def run(self, model: Any, inputs: Mapping[str, Tensor], knob: float) -> Tensor:
        """Run all layers that the model has."""
        return HashExits().run(model, inputs)

    def predict(self, model: Any, tokenized: Tokenized, processes: Processes, knob: float) -> Predictions:
        """Run all layers that the model has, without padding."""
        return HashExits().predict(model, tokenized, processes)

    def sweep(
        self, model: Any, tokenized: Tokenized, processes: Processes, knobs: Sequence[float]
    ) -> list[Predictions]:
        """Predict once: a depth is one operating point."""
        return HashExits().sweep(model, tokenized, processes, knobs)
