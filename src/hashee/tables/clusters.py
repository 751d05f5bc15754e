"""Tokens with similar embeddings exit together, those with short vectors first."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hashee.errors import TableError, TableMismatch
from hashee.packages import require
from hashee.tables.buckets import Buckets, whole_number
from hashee.tables.draft import Draft, draft_of_positions
from hashee.tables.vocabulary import Vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# Beyond this many rows full k-means takes minutes, and its mini-batch form finds nearly the same clusters.
_MOST_ROWS_FOR_FULL_KMEANS = 80_000
_RESTARTS = 3


def draft(
    tokenizer: "PreTrainedTokenizerBase",
    model: "PreTrainedModel | Tensor",
    buckets: Buckets,
    seed: int,
    vocab_size: int | None,
) -> Draft:
    """Build the table of `ExitTable.by_clusters`."""
    seed = whole_number("seed", seed, at_least=0)
    embeddings = input_embeddings(model)
    vocabulary = Vocabulary.of(tokenizer)
    if len(embeddings) < vocabulary.size:
        raise TableMismatch(
            f"the embedding matrix has {len(embeddings)} rows but the tokenizer has {vocabulary.size} tokens; "
            f"pass the tokenizer of this model, or call model.resize_token_embeddings({vocabulary.size})"
        )
    ids = np.setdiff1d(np.arange(vocabulary.size), np.array(vocabulary.special_ids, dtype=np.int64))
    vectors = embeddings.numpy()[ids]
    clusters = cluster_by_norm(vectors, buckets.num_buckets, seed)
    positions = positions_in_clusters(clusters, vectors, buckets.num_buckets)
    padded = vocabulary.padded(len(embeddings) if vocab_size is None else vocab_size)
    return draft_of_positions("clusters", ids, positions, buckets, padded, seed=seed)


def input_embeddings(model: "PreTrainedModel | Tensor") -> Tensor:
    """Return the input-embedding matrix of a model, or the tensor itself, in float32 on the CPU. (rows, width)"""
    weight: Any = model
    if not isinstance(model, Tensor):
        weight = getattr(model.get_input_embeddings(), "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2:
        raise TableError(
            f"{type(model).__name__} has no embedding matrix; pass a model with get_input_embeddings() "
            f"or a tensor of shape (tokens, width)"
        )
    if weight.is_meta:
        raise TableError("the embedding matrix is on the meta device; load the model's weights first")
    embeddings = weight.detach().to("cpu", torch.float32)
    if not bool(torch.isfinite(embeddings).all()):
        raise TableError("the embedding matrix holds NaN or infinity; load an undamaged checkpoint")
    return embeddings


def cluster_by_norm(vectors: NDArray[np.float32], num_clusters: int, seed: int) -> NDArray[np.int64]:
    """Return the k-means cluster of each vector, numbered from the smallest mean norm to the largest.

    vectors: (tokens, width). Returns (tokens,), values below `num_clusters`.
    """
    if num_clusters > len(vectors):
        raise TableError(f"num_buckets={num_clusters} is more than the {len(vectors)} tokens to cluster; use fewer")
    clusters = _kmeans(vectors, num_clusters, seed)
    sizes = np.bincount(clusters, minlength=num_clusters)
    # The mean, not the sum: a large cluster of short vectors still comes first.
    norms = np.bincount(clusters, np.linalg.norm(vectors, axis=1), minlength=num_clusters) / np.maximum(sizes, 1)
    # Clusters that stay empty (fewer different vectors than clusters) take the last numbers.
    order = np.lexsort((norms, sizes == 0))
    number = np.empty(num_clusters, dtype=np.int64)
    number[order] = np.arange(num_clusters)
    return number[clusters]


def positions_in_clusters(
    clusters: NDArray[np.int64], vectors: NDArray[np.float32], num_clusters: int
) -> NDArray[np.float64]:
    """Spread the tokens of each cluster over its equal part of the range from 0 to 1, short vectors first. (tokens,)"""
    order = np.lexsort((np.linalg.norm(vectors, axis=1), clusters))
    sizes = np.bincount(clusters, minlength=num_clusters)
    rank = np.empty(len(clusters), dtype=np.int64)
    rank[order] = np.arange(len(clusters)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    # The half keeps rounding from moving a token into the next cluster.
    return (clusters + (rank + 0.5) / sizes[clusters]) / num_clusters


def _kmeans(vectors: NDArray[np.float32], num_clusters: int, seed: int) -> NDArray[np.int64]:
    cluster = require("sklearn.cluster", "clusters", "clustering")
    options: dict[str, Any] = {"n_clusters": num_clusters, "n_init": _RESTARTS, "random_state": seed}
    if len(vectors) <= _MOST_ROWS_FOR_FULL_KMEANS:
        kmeans = cluster.KMeans(**options)
    else:
        kmeans = cluster.MiniBatchKMeans(batch_size=8192, **options)
    clusters: NDArray[np.int64] = kmeans.fit_predict(vectors).astype(np.int64)
    return clusters
