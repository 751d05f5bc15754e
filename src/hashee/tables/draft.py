"""What every table builder returns: exit layers, and how and from what they were built."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hashee.errors import TableError
from hashee.tables.buckets import Buckets
from hashee.tables.budget import Seen
from hashee.tables.budgeted import Scale, Solution, solve
from hashee.tables.counting import CorpusInfo, TokenCounts
from hashee.tables.vocabulary import Vocabulary


@dataclass(frozen=True)
class Draft:
    """The fields of an ExitTable before it is validated; see there for their meaning."""

    exit_layers: NDArray[np.int64]
    num_layers: int
    method: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    corpus: CorpusInfo | None = None
    tokenizer_fingerprint: str | None = None
    occurrences: tuple[int, ...] | None = None


def draft_of_ranking(
    method: str,
    ranking: NDArray[np.int64],
    counts: TokenCounts,
    buckets: Buckets,
    vocabulary: Vocabulary,
    **parameters: object,
) -> Draft:
    """Cut ranked ids, first to exit first, into buckets; special and unranked ids get the last layer.

    ranking: (ranked,) token ids.
    """
    ranking = ranking[~np.isin(ranking, vocabulary.special_ids)]
    if not len(ranking):
        raise TableError(f"none of the {counts.num_texts} texts holds a token that could exit; check the corpus")
    if buckets.budget is None:
        exit_layers = buckets.layers_of_ranking(ranking, vocabulary.size)
    else:
        positions = np.arange(len(ranking)) / len(ranking)
        seen = Seen(ranking, counts.occurrences[ranking], counts.num_texts)
        solution = _solved(buckets, ranking, positions, vocabulary, seen)
        exit_layers, parameters = solution.exit_layers, parameters | solution.settings(buckets.budget)
    return Draft(
        exit_layers,
        buckets.num_layers,
        method,
        buckets.settings() | parameters,
        counts.corpus,
        vocabulary.fingerprint,
        occurrences_per_layer(exit_layers, buckets.num_layers, counts.occurrences),
    )


def draft_of_positions(
    method: str,
    ids: NDArray[np.int64],
    positions: NDArray[np.float64],
    buckets: Buckets,
    vocabulary: Vocabulary,
    **parameters: object,
) -> Draft:
    """Give ids the bucket in which their position lies; special and all other ids get the last layer.

    ids: (assigned,) token ids; positions: (assigned,) from 0 to below 1, of which each bucket covers an equal part.
    """
    exits = ~np.isin(ids, vocabulary.special_ids)
    ids, positions = ids[exits], positions[exits]
    if buckets.budget is None:
        exit_layers = np.full(vocabulary.size, buckets.num_layers, dtype=np.int64)
        exit_layers[ids] = buckets.layers()[(positions * buckets.num_buckets).astype(np.int64)]
    else:
        order = np.argsort(positions, kind="stable")
        solution = _solved(buckets, ids[order], positions[order], vocabulary, seen=None)
        exit_layers, parameters = solution.exit_layers, parameters | solution.settings(buckets.budget)
    return Draft(
        exit_layers,
        buckets.num_layers,
        method,
        buckets.settings() | parameters,
        tokenizer_fingerprint=vocabulary.fingerprint,
    )


def _solved(
    buckets: Buckets,
    ids: NDArray[np.int64],
    positions: NDArray[np.float64],
    vocabulary: Vocabulary,
    seen: Seen | None,
) -> Solution:
    """Move the cuts between the buckets until the budget is met. ids, positions: (assigned,), in order."""
    assert buckets.budget is not None

    def layers_at(setting: float) -> NDArray[np.int64]:
        return buckets.layers_at(positions, setting / (1 - setting) if setting < 1 else np.inf)

    scale = Scale(ids, buckets.num_layers, vocabulary.size, layers_at, ordered=True, seen=seen)
    return solve(scale, buckets.budget)


def occurrences_per_layer(
    exit_layers: NDArray[np.int64], num_layers: int, occurrences: NDArray[np.int64]
) -> tuple[int, ...]:
    """Return how many tokens of a corpus exit at each of the layers 0..num_layers.

    exit_layers: (vocab,); occurrences: of each token id, as many as were counted. Returns (num_layers + 1,).
    """
    totals = np.zeros(num_layers + 1, dtype=np.int64)
    np.add.at(totals, exit_layers[: len(occurrences)], occurrences)
    return tuple(totals.tolist())
