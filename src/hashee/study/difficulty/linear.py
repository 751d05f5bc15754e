"""Linear predictors: Linear-M on mean word embeddings, Linear-B on the hidden state of the layer that is judged."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hashee.data import Examples
from hashee.errors import InputError
from hashee.packages import require
from hashee.study.difficulty.datasets import DifficultySet, flat_targets
from hashee.study.difficulty.features import backbone_of, layer_states, mean_embeddings, tokenized_by
from hashee.study.difficulty.judgement import judge, merit
from hashee.study.difficulty.predictor import Fitted, PredictorSettings
from hashee.study.difficulty.sampling import Splits, oversampled
from hashee.training.backbone import open_backbone

Array = NDArray[Any]
STEPS = 200
"""Of the solver, at most."""
STRENGTHS = (1.0, 0.1, 0.01, 0.001)
"""Inverses of the penalty, of which the best on dev is kept."""


class LinearM:
    """A linear layer on the mean of the word embeddings, with an output for each layer (Elbayad's multinomial).

    At token level, which the paper leaves out, it reads the embedding of the word alone.
    """

    name = "Linear-M"
    reads_backbone = True

    def refuse(self, data: DifficultySet, settings: PredictorSettings) -> None:
        """Refuse nothing."""

    def fit(self, splits: Splits, settings: PredictorSettings, work: Path) -> Fitted:
        """Fit one logistic regression for each layer, all on the same features."""
        backbone = backbone_of(splits, settings)
        model = backbone.load(settings.seed)

        def features(examples: Examples) -> Array:
            return mean_embeddings(backbone, model, tokenized_by(backbone, settings, examples))[:, None]

        return _fit(splits, settings, features)


class LinearB:
    """A binary linear layer on each layer's state of a frozen backbone (BERxiT's module, Elbayad's geometric one)."""

    name = "Linear-B"
    reads_backbone = True

    def refuse(self, data: DifficultySet, settings: PredictorSettings) -> None:
        """Refuse backbones with fewer layers than are judged."""
        layers = open_backbone(settings.backbone, data.task, None).layers
        # Human-defined difficulty is read after the last layer.
        if data.level != "human" and layers < data.layers:
            raise InputError(
                f"Linear-B reads layer {data.layers} for the last of {data.layers} labels of {data.name}, but the "
                f"backbone {Path(settings.backbone).name} has {layers} layers; name one with at least {data.layers}"
            )

    def fit(self, splits: Splits, settings: PredictorSettings, work: Path) -> Fitted:
        """Run the backbone once over all examples; fit one logistic regression on each layer's states."""
        backbone = backbone_of(splits, settings)
        model = backbone.packed(backbone.load(settings.seed)).eval()
        outputs = len(splits.task.labels)

        def features(examples: Examples) -> Array:
            states = layer_states(model, tokenized_by(backbone, settings, examples))
            return states[:, -1:] if splits.level == "human" else states[:, :outputs]

        return _fit(splits, settings, features)


def _fit(splits: Splits, settings: PredictorSettings, features: Callable[[Examples], Array]) -> Fitted:
    """Fit a logistic regression for each layer, with the penalty that is best on dev.

    features: from examples to (instances, layers, width), or (instances, 1, width) where all layers read the same.
    """
    seen, targets = features(splits.seen), flat_targets(splits.level, splits.seen)
    rows = _instances(splits, oversampled(splits.level, splits.seen, settings.oversampling, settings.seed))
    rows = rows[~np.isnan(seen[rows]).any(axis=(1, 2))]
    mean, spread = seen[rows].mean(axis=0), seen[rows].std(axis=0) + 1e-8
    train = (seen[rows] - mean) / spread
    dev, test = ((features(examples) - mean) / spread for examples in (splits.dev, splits.test))
    dev_targets = flat_targets(splits.level, splits.dev)

    def score(models: list[Any]) -> float:
        return merit(splits.level, judge(_probabilities(models, dev), dev_targets))

    tried = [_models(train, targets[rows], strength) for strength in STRENGTHS]
    return Fitted(_probabilities(max(tried, key=score), test))


def _instances(splits: Splits, examples: list[int]) -> Array:
    """Return the rows of the instances of some examples: themselves, or all their words."""
    if splits.level != "token":
        return np.array(examples)
    words = [len(text) for text in splits.seen.texts]
    ends = np.cumsum(words)
    return np.concatenate([np.arange(ends[index] - words[index], ends[index]) for index in examples])


def _models(train: Array, targets: Array, strength: float) -> list[Any]:
    """Fit a model for each layer; a number where all targets are the same.

    train: (instances, layers or 1, width); targets: (instances, layers).
    """
    linear_model = require("sklearn.linear_model", "train", "a linear predictor")
    models: list[Any] = []
    for layer in range(targets.shape[1]):
        column = train[:, min(layer, train.shape[1] - 1)]
        if len(np.unique(targets[:, layer])) == 1:
            models.append(float(targets[0, layer]))
        else:
            regression = linear_model.LogisticRegression(C=strength, max_iter=STEPS)
            models.append(regression.fit(column, targets[:, layer]))
    return models


def _probabilities(models: list[Any], features: Array) -> Array:
    """Return the probabilities of the positive labels: (instances, layers), NaN where features are."""
    known = ~np.isnan(features).any(axis=(1, 2))
    found = np.full((len(features), len(models)), np.nan)
    for layer, model in enumerate(models):
        column = features[known, min(layer, features.shape[1] - 1)]
        found[known, layer] = model if isinstance(model, float) else model.predict_proba(column)[:, 1]
    return found
