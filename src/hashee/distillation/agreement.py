"""How close the outputs of a faster model stay to those of the dense one, on texts that were held out."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hashee.data.output_types import OutputType
from hashee.packages import require

Array = NDArray[Any]
NEIGHBOURS = 10
SCORE = "score"
"""The entry of the metrics that students are chosen by."""


def agreement(
    output: OutputType, fast: Sequence[Array], dense: Sequence[Array], groups: Array | None
) -> dict[str, float]:
    """Return how far the outputs of two models agree; 1 is best, but for differences.

    fast, dense: (width,) of each text, (scores,) or (tokens, width). groups: (texts,) number of each pair's query.
    """
    if output is OutputType.SCORE:
        return _of_scores(np.stack(fast), np.stack(dense), groups)
    if output is OutputType.STATES:
        closeness = np.concatenate([closeness_of(output, own, other) for own, other in zip(fast, dense, strict=True)])
        return {"cosine": float(closeness.mean()), SCORE: float(closeness.mean())}
    one, other = _unit(np.stack(fast)), _unit(np.stack(dense))
    cosine = float((one * other).sum(axis=1).mean())
    found = {"cosine": cosine}
    if len(one) > 2:
        own_pairs, dense_pairs = one @ one.T, other @ other.T
        upper = np.triu_indices(len(one), k=1)
        found["spearman"] = spearman(own_pairs[upper], dense_pairs[upper])
        found[f"recall@{NEIGHBOURS}"] = _recall_of_neighbours(own_pairs, dense_pairs)
    return found | {SCORE: cosine}


def closeness_of(output: OutputType, own: Array, other: Array) -> Array:
    """Return the cosines of embeddings or states, or the negated distances of scores. (rows,)"""
    own, other = np.atleast_2d(own), np.atleast_2d(other)
    if output is OutputType.SCORE:
        distances: Array = -np.abs(own - other).max(axis=-1)
        return distances
    cosines: Array = (_unit(own) * _unit(other)).sum(axis=-1)
    return cosines


def spearman(one: Array, other: Array) -> float:
    """Return the rank correlation of two rows of numbers; 0 where one of them is constant."""
    stats = require("scipy.stats", "train", "rank correlation")
    if np.ptp(one) == 0 or np.ptp(other) == 0:
        return 0.0
    return float(stats.spearmanr(one, other).statistic)


def _of_scores(fast: Array, dense: Array, groups: Array | None) -> dict[str, float]:
    """fast, dense: (texts, scores)."""
    correlation = spearman(fast.ravel(), dense.ravel())
    spread = max(float(dense.std()), 1e-12)
    found = {"spearman": correlation, "difference": float(np.abs(fast - dense).mean()) / spread}
    if fast.shape[1] > 1:
        found["same_class"] = float((fast.argmax(axis=1) == dense.argmax(axis=1)).mean())
    elif groups is not None:
        order = _same_order(fast[:, 0], dense[:, 0], groups)
        found |= {} if order is None else {"same_order": order}
    return found | {SCORE: correlation}


def _same_order(fast: Array, dense: Array, groups: Array) -> float | None:
    """Return the share of pairs of documents of one query that both put in the same order; None without any."""
    same = pairs = 0
    for group in np.unique(groups):
        rows = np.flatnonzero(groups == group)
        first, second = np.triu_indices(len(rows), k=1)
        own, other = fast[rows], dense[rows]
        same += int((np.sign(own[first] - own[second]) == np.sign(other[first] - other[second])).sum())
        pairs += len(first)
    return same / pairs if pairs else None


def _recall_of_neighbours(own: Array, other: Array) -> float:
    """Return the share of the nearest texts by similarities that are so by others. (texts, texts) each."""
    number = min(NEIGHBOURS, len(own) - 1)
    nearest = []
    for similarities in (own, other):
        distances = -similarities
        np.fill_diagonal(distances, np.inf)
        nearest.append(np.argpartition(distances, number - 1, axis=1)[:, :number])
    shared = [len(np.intersect1d(*rows)) for rows in zip(*nearest, strict=True)]
    return float(np.mean(shared)) / number


def _unit(rows: Array) -> Array:
    unit: Array = rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1e-12)
    return unit
