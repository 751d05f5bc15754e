"""What a predictor of difficulty is, and all of them by name."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hashee.errors import InputError
from hashee.study.difficulty.datasets import DifficultySet, flat_targets
from hashee.study.difficulty.results import Epoch
from hashee.study.difficulty.sampling import HALF_WAY, Splits

Array = NDArray[Any]
CURVE_EXAMPLES = 2000
"""Training examples that the accuracy on train is measured with, at most."""


@dataclass(frozen=True)
class PredictorSettings:
    """How a predictor is trained."""

    backbone: str = "minilm"
    """Folder or Hub id of a model: tokens, embeddings and layers that predictors read or fine-tune."""
    seed: int = 0
    oversampling: float = HALF_WAY
    """How far classes are evened out, from 0 to 1."""
    epochs: float | None = None
    """Passes over the training examples; None for the predictor's own."""
    learning_rate: float | None = None
    """Of BiLSTM and Transformer; None for the predictor's own."""
    max_length: int = 128
    bf16: bool = False
    """Train Transformers in bfloat16 mixed precision."""

    def __post_init__(self) -> None:
        if not 0 <= self.oversampling <= 1:
            raise InputError(f"oversampling is {self.oversampling}; it must be from 0 to 1")
        if self.epochs is not None and self.epochs <= 0:
            raise InputError(f"epochs is {self.epochs}; it must be above 0")

    def recorded(self) -> Mapping[str, Any]:
        """Return what results depend on, besides backbone and seed."""
        own = {
            "oversampling": self.oversampling,
            "epochs": self.epochs,
            "max_length": self.max_length,
            "bf16": self.bf16,
        }
        return own if self.learning_rate is None else own | {"learning_rate": self.learning_rate}


@dataclass(frozen=True)
class Fitted:
    """What a predictor says of the test split."""

    test: Array
    """Probabilities that layers are right: (instances, layers); NaN for words that were truncated."""
    curve: tuple[Epoch, ...] = ()
    """One for each pass, where it learns in passes."""


class Predictor(Protocol):
    """Learns from a text, or from words in it, which layers get it right."""

    name: str
    """As the paper's table calls it."""
    reads_backbone: bool

    def refuse(self, data: DifficultySet, settings: PredictorSettings) -> None:
        """Raise if the set cannot be learned with these settings."""

    def fit(self, splits: Splits, settings: PredictorSettings, work: Path) -> Fitted:
        """Learn from train, choose on dev, predict test. work: folder for files that are needed meanwhile."""


class Majority:
    """Predicts for each layer what most training examples have, whatever the text."""

    name = "Majority"
    reads_backbone = False

    def refuse(self, data: DifficultySet, settings: PredictorSettings) -> None:
        """Refuse nothing."""

    def fit(self, splits: Splits, settings: PredictorSettings, work: Path) -> Fitted:
        """Count; rare classes are not sampled over, as the prior is all there is to learn."""
        prior = flat_targets(splits.level, splits.seen).mean(axis=0)
        return Fitted(np.tile(prior, (len(flat_targets(splits.level, splits.test)), 1)))
