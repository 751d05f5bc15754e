"""Scores between contents and relative positions (DeBERTa's disentangled attention).

A query and a key `d` columns apart add two terms to their score: the query times a key of the distance (content to
position), and the key times a query of the distance (position to content). Both are projected from one embedding for
each range of distances, which depends on no text: inference keeps the projections as long as the weights do not change,
training projects the distances that occur in a batch. Each content is multiplied with all of these, and each pair then
takes the products of its own distance. Keys of frozen tokens are needed as they are, which rules out the absorbed form.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Module

from hashee.engine.linear import is_bare_linear, project
from hashee.engine.memory import checksums, is_readable
from hashee.engine.plan import Group


class DistanceCache:
    """The projected distances of one encoder, which owns it; copied and unpickled encoders start without any."""

    def __init__(self) -> None:
        self.projected: dict[Module, tuple[tuple[int, ...], Tensor]] = {}
        """By linear layer: checksums of what they depend on, and (all distances, attention width)."""

    def clear(self) -> None:
        """Drop all projections and free their memory."""
        self.projected = {}

    def __deepcopy__(self, memo: Any) -> "DistanceCache":
        return DistanceCache()

    def __reduce__(self) -> tuple[type["DistanceCache"], tuple[()]]:
        return DistanceCache, ()

    def look_up(self, module: Module, embeddings: Tensor, checksum: int) -> Tensor | None:
        """Return all distances as a layer projects them, computed once; None where they must be computed each time.

        embeddings: (all distances, width); checksum: of these.
        """
        weights = list(module.parameters())
        if not (is_bare_linear(module) and all(map(is_readable, weights))):
            return None
        source = (checksum, *checksums(weights))
        known = self.projected.get(module)
        if known is None or known[0] != source:
            with torch.inference_mode(False), torch.no_grad():
                known = (source, project(module, embeddings.clone()))
            self.projected[module] = known
        return known[1]


@dataclass(frozen=True)
class RelativeDistances:
    """The distances of the tokens of a batch, for all layers."""

    embeddings: Tensor
    """(all distances, width) embeddings of the ranges of distances, before each layer's projections."""
    rows: slice
    """Those of them that occur in the batch."""
    index: Tensor
    """(sequences, longest, longest) which of these `rows` each pair of query and key has, in the order of slots."""
    cache: DistanceCache | None = None
    """Where projections are kept; None: they are computed."""
    checksum: int = 0
    """Of the embeddings, if there is a cache."""

    @classmethod
    def of(cls, embeddings: Tensor, rows: slice, index: Tensor, cache: DistanceCache) -> "RelativeDistances":
        """Return the distances of a batch, whose projections are looked up in inference on a CPU."""
        computed = torch.is_grad_enabled() or torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu")
        if computed or not is_readable(embeddings):
            return cls(embeddings, rows, index)
        return cls(embeddings, rows, index, cache, checksums([embeddings])[0])

    def select(self, sequences: Tensor, longest: int) -> "RelativeDistances":
        """Return the distances of the sequences that stay in a batch; longest: tokens of the longest of them."""
        return replace(self, index=self.index.index_select(0, sequences)[:, :longest, :longest])

    def projected(self, module: Module | None, dropout: float) -> Tensor | None:
        """Return the distances that occur, as a layer projects them: (distances, attention width)."""
        if module is None:
            return None
        if self.cache is not None and dropout == 0:
            known = self.cache.look_up(module, self.embeddings, self.checksum)
            if known is not None:
                return known[self.rows]
        embeddings = self.embeddings[self.rows]
        return project(module, F.dropout(embeddings, dropout) if dropout > 0 else embeddings)


@dataclass(frozen=True)
class DistanceProjections:
    """What a layer projects embeddings of distances with; None: the layer has no such term."""

    key: Module | None
    """For scores of queries."""
    query: Module | None
    """For scores of keys."""

    def project(self, distances: RelativeDistances, dropout: float) -> "RelativeScores":
        """Return the distances of a batch as the layer sees them. dropout: probability, of their embeddings."""
        key, query = (distances.projected(module, dropout) for module in (self.key, self.query))
        return RelativeScores(key, query, distances.index)


@dataclass(frozen=True)
class RelativeScores:
    """The distances of a batch as one layer sees them."""

    keys: Tensor | None
    queries: Tensor | None
    """(distances, attention width) each."""
    index: Tensor
    """As in `RelativeDistances`."""

    def of(self, query: Tensor, key: Tensor, group: Group) -> Tensor:
        """Return what distances add to the scores of a group, before these are scaled.

        query, key: (sequences, heads, slots, head width). Returns (sequences, heads, query slots, key slots).
        """
        heads, query_slots, key_slots = query.shape[1], query.shape[2], key.shape[2]
        index = self.index[group.sequences, None, :query_slots, :key_slots]
        index = index.expand(-1, heads, -1, -1)
        terms = []
        if self.keys is not None:
            terms.append((query @ _by_head(self.keys, heads)).gather(-1, index))
        if self.queries is not None:
            products = key @ _by_head(self.queries, heads)
            terms.append(products.gather(-1, index.transpose(-1, -2)).transpose(-1, -2))
        return terms[0] if len(terms) == 1 else terms[0] + terms[1]


def _by_head(rows: Tensor, heads: int) -> Tensor:
    """View projected distances as factors of all heads: (distances, width) -> (heads, head width, distances)."""
    return rows.view(len(rows), heads, -1).permute(1, 2, 0)
