"""What every way to build a table hands over: exit layers and where they come from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hashee.errors import TableError
from hashee.hashing.buckets import Buckets
from hashee.hashing.counting import CorpusInfo, TokenCounts
from hashee.hashing.vocabulary import Vocabulary


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
    """Cut ranked ids, first to exit first, into equal buckets; special and unranked ids get the last layer.

    ranking: (ranked,) token ids.
    """
    ranking = ranking[~np.isin(ranking, vocabulary.special_ids)]
    if not len(ranking):
        raise TableError(f"none of the {counts.num_texts} texts holds a token that could exit; check the corpus")
    exit_layers = buckets.layers_of_ranking(ranking, vocabulary.size)
    return Draft(
        exit_layers,
        buckets.num_layers,
        method,
        {"num_buckets": buckets.num_buckets, "min_exit": buckets.min_exit, **parameters},
        counts.corpus,
        vocabulary.fingerprint,
        occurrences_per_layer(exit_layers, buckets.num_layers, counts),
    )


def draft_of_buckets(
    method: str,
    ids: NDArray[np.int64],
    bucket_of_id: NDArray[np.int64],
    buckets: Buckets,
    vocabulary: Vocabulary,
    **parameters: object,
) -> Draft:
    """Give ids the layer of their bucket; special and all other ids get the last layer.

    ids: (assigned,) token ids; bucket_of_id: (assigned,) the bucket of each.
    """
    exit_layers = np.full(vocabulary.size, buckets.num_layers, dtype=np.int64)
    exit_layers[ids] = buckets.layers()[bucket_of_id]
    exit_layers[list(vocabulary.special_ids)] = buckets.num_layers
    return Draft(
        exit_layers,
        buckets.num_layers,
        method,
        {"num_buckets": buckets.num_buckets, "min_exit": buckets.min_exit, **parameters},
        tokenizer_fingerprint=vocabulary.fingerprint,
    )


def occurrences_per_layer(exit_layers: NDArray[np.int64], num_layers: int, counts: TokenCounts) -> tuple[int, ...]:
    """Return how many tokens of a corpus exit at each of the layers 0..num_layers.

    exit_layers: (vocab,). Returns (num_layers + 1,).
    """
    totals = np.zeros(num_layers + 1, dtype=np.int64)
    np.add.at(totals, exit_layers[: len(counts.occurrences)], counts.occurrences)
    return tuple(totals.tolist())
