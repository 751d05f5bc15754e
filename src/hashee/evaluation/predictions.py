"""What models predict for the examples of a split: how far off, how confident, how fast, and how far two agree."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from hashee.cost.rounds import alternate
from hashee.data.batching import Batching, make_batches
from hashee.data.task import Examples, Kind, Task
from hashee.data.texts import Text
from hashee.data.tokenized import Tokenized
from hashee.errors import HasheeError
from hashee.evaluation.opening import Opened

Array = NDArray[Any]


@dataclass(frozen=True)
class Agreement:
    """How far the predictions of two models are the same."""

    metric: str
    """`equal predictions` as a share, or for scores `pearson`."""
    value: float


@dataclass(frozen=True)
class Timing:
    """How long a model took for the same texts, round by round."""

    texts: int
    seconds: tuple[float, ...]

    @property
    def texts_per_second(self) -> float:
        """Texts / median seconds of a round."""
        return self.texts / max(median(self.seconds), 1e-9)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"texts": self.texts, "seconds": list(self.seconds), "texts_per_second": self.texts_per_second}


def predict_logits(opened: Opened, examples: Examples, progress: bool = False) -> list[Array]:
    """Return the logits for each example, the outputs in the order of the task's labels.

    (labels,) for a text; for tags (words, labels), with NaN for words that were cut off.
    """
    if opened.task.kind is Kind.TAGS:
        logits = _for_words(opened, opened.encoder(examples))
    else:
        rows = opened.predict(cast(Sequence[Text], examples.texts), progress)
        logits = [_finite(opened, row, index) for index, row in enumerate(rows)]
    return [row[..., opened.order] for row in logits]


def _for_words(opened: Opened, encoded: Tokenized) -> list[Array]:
    """Run tokenized words in batches of like cost and pick the logits of each word's first token."""
    exit_layers = None if opened.table is None else opened.table.exit_layers.numpy()
    found: list[Array] = [np.empty(0)] * len(encoded)
    for indices in make_batches([row.tolist() for row in encoded.ids], exit_layers, Batching()):
        inputs = {name: tensor.numpy() for name, tensor in encoded.inputs(indices).items()}
        for index, logits in zip(indices, opened.run(inputs), strict=True):
            assert encoded.starts is not None
            starts = encoded.starts[index]
            picked = np.full((len(starts), logits.shape[1]), np.nan, dtype=np.float32)
            picked[starts >= 0] = _finite(opened, logits[starts[starts >= 0]], index)
            found[index] = picked
    return found


def _finite(opened: Opened, logits: Array, index: int) -> Array:
    if not np.isfinite(logits).all():
        raise HasheeError(
            f"the model in {opened.source} predicts {logits[~np.isfinite(logits)][0]} for example {index}; its weights "
            f"are damaged or overflow, so fit it again"
        )
    return logits


def time_rounds(models: Sequence[Opened], examples: Examples, rounds: int, at_most: int) -> list[Timing]:
    """Time models on the same texts, tokenizing included, in rounds that alternate between them."""
    timed = Examples([examples.texts[index] for index in spread(range(len(examples)), at_most)], None)
    seconds = alternate([partial(predict_logits, model, timed) for model in models], rounds)
    return [Timing(len(timed), each) for each in seconds]


def spread(indices: Sequence[int], count: int) -> list[int]:
    """Return at most `count` of some indices, evenly spaced."""
    picked = np.unique(np.linspace(0, len(indices) - 1, min(count, len(indices))).round().astype(int))
    return [indices[number] for number in picked]


def losses(task: Task, logits: Sequence[Array], targets: Sequence[Any]) -> Array:
    """Return how far each prediction is off: the cross-entropy, for scores the absolute error. (examples,)"""
    return np.array(
        [_loss(task.kind, row.astype(np.float64), target) for row, target in zip(logits, targets, strict=True)]
    )


def _loss(kind: Kind, logits: Array, target: Any) -> float:
    if kind is Kind.SCORE:
        return float(abs(logits[0] - target))
    if kind is Kind.LABELS:
        signs = 2 * np.asarray(target) - 1
        return float(np.logaddexp(0, -signs * logits).mean())
    rows, tags = np.atleast_2d(logits), np.atleast_1d(target)
    seen = ~np.isnan(rows[:, 0])
    if not seen.any():
        return 0.0
    return float(-_log_probabilities(rows)[np.arange(len(tags)), tags][seen].mean())


def confidence(kind: Kind, logits: Array) -> float | None:
    """Return the probability that a model gives to its own prediction, the least of its decisions; scores have none."""
    if kind is Kind.SCORE:
        return None
    if kind is Kind.LABELS:
        return float(np.exp(-np.logaddexp(0, -np.abs(logits.astype(np.float64)))).min())
    best = _log_probabilities(np.atleast_2d(logits.astype(np.float64))).max(axis=1)
    seen = best[~np.isnan(best)]
    return float(np.exp(seen.min())) if len(seen) else None


def agreement(task: Task, predictions: Sequence[Any], others: Sequence[Any]) -> Agreement:
    """Compare two models' predictions: the share of equal ones (for tags, of words), or for scores Pearson's r."""
    if task.kind is Kind.SCORE:
        one, other = np.asarray(predictions, dtype=np.float64), np.asarray(others, dtype=np.float64)
        if np.array_equal(one, other):
            return Agreement("pearson", 1.0)
        if np.ptp(one) == 0 or np.ptp(other) == 0:
            return Agreement("pearson", 0.0)
        return Agreement("pearson", float(np.corrcoef(one, other)[0, 1]))
    if task.kind is Kind.TAGS:
        predictions, others = ([tag for tags in each for tag in tags] for each in (predictions, others))
    equal = sum(one == other for one, other in zip(predictions, others, strict=True))
    return Agreement("equal predictions", equal / max(len(predictions), 1))


def _log_probabilities(rows: Array) -> Array:
    """Return the logarithm of the softmax of each row. (rows, labels)"""
    shifted = rows - rows.max(axis=1, keepdims=True)
    logs: Array = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return logs
