"""How far the mean worth of a token type can be trusted, estimated from how well parts of a corpus agree on it."""

from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

PARTS = 8
"""Random parts of a corpus that are kept apart."""
DEFAULT_PSEUDO_COUNTS = 20.0
"""Pseudo-counts where there are too few types to estimate them."""
_LEAST_IN_HALF = 8
_LEAST_TYPES = 30
_RANGE = (2.0, 1000.0)
# Each half of the parts once; its complement is the other one.
_HALVES = [half for half in combinations(range(PARTS), PARTS // 2) if 0 in half]


def part_of(digest: bytes) -> int:
    """Return the part in which a text with this digest is, the same in whatever order the texts come."""
    return digest[0] % PARTS


def pseudo_counts_of(parts: Floats | None) -> float:
    """Return how often a type must be seen for its own mean to be as good an estimate as that of similar types.

    parts: (types, 2, PARTS) occurrences and summed sizes of effects in each part of the corpus, None if unknown.

    The log of a type's mean is modelled as that of types about as frequent, plus a part of its own (variance `own`),
    plus chance, whose variance falls with the occurrences (`chance / count`). Two halves of a corpus differ by chance
    alone, and their covariance is `own`; shrinking by `chance / own` pseudo-counts then has the least error.
    """
    if parts is None:
        return DEFAULT_PSEUDO_COUNTS
    halves = [half for half in (_in_halves(parts, first) for first in _HALVES) if len(half) >= _LEAST_TYPES]
    if not halves:
        return DEFAULT_PSEUDO_COUNTS
    chance, own = np.mean([_variances(half) for half in halves], axis=0)
    low, high = _RANGE
    return high if own * high <= chance else max(low, float(chance / own))


def _in_halves(parts: Floats, first: tuple[int, ...]) -> Floats:
    """Return occurrences and sizes in two halves, of types that both saw often enough. (types, 2, 2)"""
    one = parts[:, :, list(first)].sum(axis=-1)
    both = np.stack([one, parts.sum(axis=-1) - one], axis=-1)
    usable = (both[:, 0] >= _LEAST_IN_HALF).all(axis=-1) & (both[:, 1] > 0).all(axis=-1)
    return both[usable]


def _variances(halves: Floats) -> tuple[float, float]:
    """Return the variance of one occurrence by chance, and that of types about as frequent. halves: (types, 2, 2)"""
    counts = halves[:, 0]
    logs = np.log(halves[:, 1] / counts)
    chance = np.mean(np.diff(logs, axis=-1)[:, 0] ** 2 / (1 / counts).sum(axis=-1))
    band = np.log2(counts.sum(axis=-1)).astype(np.int64)
    sizes = np.maximum(np.bincount(band), 1)
    apart = [log - (np.bincount(band, log) / sizes)[band] for log in logs.T]
    return float(chance), float(np.mean(apart[0] * apart[1]))
