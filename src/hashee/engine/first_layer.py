"""The first layer's queries, keys and values, summed from cached rows of every token type and position.

The input of the first layer is a layer norm of a sum, `x = word + position + type`, and both the projection W and the
centring of the norm are linear, so `W norm(x) + b = r (W' word + W' position + W' type) + b'`: with the factor r that
scales x to unit variance, W' the projection with the norm's gain and centring folded in, and b' its biases. The
products are the same for every occurrence of a type, so each is computed once and then looked up.

The cache belongs to the encoder and is checked against the contents of the weights in every forward pass: weights may
be changed in ways that no version counter shows (`.data`, views, other processes, merged adapters). The projections,
norms and positions are hashed as a whole; of the word embeddings, the rows of the batch have a checksum each.
"""

from dataclasses import dataclass
from threading import Lock
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hashee.engine.adapter import Adapter, PackedTokens
from hashee.engine.block import Block
from hashee.engine.linear import is_bare
from hashee.engine.memory import checksums, is_readable

MEMORY = 128 << 20
"""Bytes that the cached rows of token types may take in one encoder."""


@dataclass(frozen=True)
class FirstStates:
    """The embedded tokens, and their projections in the first layer."""

    hidden: Tensor
    """(tokens, width)"""
    projected: "_Sums"


@dataclass(frozen=True)
class _Sums:
    """Queries, keys and values of packed tokens, summed on demand."""

    table: Tensor
    """(rows, 3 width)"""
    rows: Tensor
    """(tokens, 3) the rows of the table that are summed for each token."""
    factors: Tensor
    """(tokens, 3) the factor of each of these rows."""

    def __call__(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values of packed rows, (rows, width) each. rows: (rows,)."""
        summed = F.embedding_bag(
            self.rows.index_select(0, rows),
            self.table,
            mode="sum",
            per_sample_weights=self.factors.index_select(0, rows),
        )
        query, key, value = summed.chunk(3, dim=1)
        return query, key, value

    def select(self, rows: Tensor) -> "_Sums":
        """Return the projections of the packed rows that stay. rows: (rows,), rising."""
        return _Sums(self.table, self.rows.index_select(0, rows), self.factors.index_select(0, rows))


class _Rows:
    """Projected rows of token types, added as types occur; a full table is replaced, never overwritten."""

    def __init__(self, fixed: Tensor, vocab_size: int) -> None:
        """fixed: (fixed, 3 width) rows that are always there: the constant b' first, then all types and positions."""
        row_bytes = fixed.shape[1] * fixed.element_size()
        self.capacity = min(vocab_size, MEMORY // row_bytes)
        # The system allocates the pages of this memory only when they are written to.
        self.table = fixed.new_empty(len(fixed) + self.capacity, fixed.shape[1])
        self.table[: len(fixed)] = fixed
        self.row_of_id = torch.full((vocab_size,), -1)
        self.checksums = torch.zeros(vocab_size, dtype=torch.int64)
        self.first = len(fixed)
        self.used = 0

    def has_room_for(self, count: int) -> bool:
        return self.used + count <= self.capacity

    def add(self, ids: Tensor, checksums: Tensor, rows: Tensor) -> None:
        start = self.first + self.used
        self.table[start : start + len(ids)] = rows
        self.checksums[ids] = checksums
        # Last, so that another thread never finds an unfinished row.
        self.row_of_id[ids] = torch.arange(start, start + len(ids))
        self.used += len(ids)


class _Lookup:
    """The looked-up projections of one encoder, valid as long as its weights do not change."""

    def __init__(self, embeddings: Any, block: Block, source: tuple[int, ...]) -> None:
        self.source = source
        norm: nn.LayerNorm = embeddings.LayerNorm
        linears = [module for module in block.attention.projections.modules if isinstance(module, nn.Linear)]
        weight = torch.cat([linear.weight.detach() for linear in linears])
        biases = [
            linear.weight.new_zeros(linear.out_features) if linear.bias is None else linear.bias.detach()
            for linear in linears
        ]
        constant = torch.cat(biases) + (0 if norm.bias is None else weight @ norm.bias.detach())
        weight = weight * norm.weight.detach()
        self.weight = weight - weight.mean(1, keepdim=True)
        positions = embeddings.position_embeddings.weight.detach()
        self.positions = len(positions)
        types = getattr(embeddings, "token_type_embeddings", None)
        if types is not None:
            positions = (types.weight.detach()[:, None] + positions).flatten(0, 1)
        self.fixed = torch.cat([constant[None], F.linear(positions, self.weight)])
        self.rows = _Rows(self.fixed, embeddings.word_embeddings.num_embeddings)
        self.lock = Lock()

    def rows_of(self, ids: Tensor, words: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the table and the row of each token in it, computing those of new types; None if they do not fit.

        ids: (tokens,); words: (tokens, width) their current word embeddings.
        """
        rows, checksums = self.rows, _row_checksums(words)
        row_of_token = rows.row_of_id[ids]
        if int(row_of_token.min()) >= 0 and torch.equal(rows.checksums[ids], checksums):
            return rows.table, row_of_token
        with self.lock:
            known = self.rows.row_of_id[ids] >= 0
            if not torch.equal(self.rows.checksums[ids[known]], checksums[known]):
                # The embeddings have changed, so no cached row is trusted.
                self._start_over()
                known = torch.zeros_like(known)
            new, first = _unique(ids, ~known)
            if not self.rows.has_room_for(len(new)):
                self._start_over()
                new, first = _unique(ids, torch.ones_like(known))
            if not self.rows.has_room_for(len(new)):
                return None
            self.rows.add(new, checksums[first], F.linear(words[first], self.weight))
            return self.rows.table, self.rows.row_of_id[ids]

    def _start_over(self) -> None:
        self.rows = _Rows(self.fixed, len(self.rows.row_of_id))


class FirstLayerCache:
    """The look-up of one encoder, which owns it; copied and unpickled encoders start without one."""

    def __init__(self) -> None:
        self.lookup: _Lookup | None = None

    def clear(self) -> None:
        """Drop the look-up and free its memory."""
        self.lookup = None

    def __deepcopy__(self, memo: Any) -> "FirstLayerCache":
        return FirstLayerCache()

    def __reduce__(self) -> tuple[type["FirstLayerCache"], tuple[()]]:
        return FirstLayerCache, ()


def look_up(
    cache: FirstLayerCache, adapter: Adapter, encoder: Any, block: Block, tokens: PackedTokens
) -> FirstStates | None:
    """Return the embedded tokens and their first queries, keys and values, or None where they must be computed."""
    if not _can_look_up(adapter, encoder, block, tokens):
        return None
    lookup = _lookup_for(cache, encoder, block)
    ids, positions, types = tokens.ids[0], tokens.positions[0], tokens.types[0]
    embeddings, norm = encoder.embeddings, encoder.embeddings.LayerNorm
    words = embeddings.word_embeddings(ids)
    found = lookup.rows_of(ids, words)
    if found is None:
        return None
    summed = words
    if hasattr(embeddings, "token_type_embeddings"):
        summed = summed + embeddings.token_type_embeddings(types)
        positions_and_types = types * lookup.positions + positions
    else:
        positions_and_types = positions
    summed = summed + embeddings.position_embeddings(positions)
    hidden, _, scale = torch.native_layer_norm(summed, norm.normalized_shape, norm.weight, norm.bias, norm.eps)

    table, word_rows = found
    # r word + r (position and type) + constant.
    rows = torch.stack([word_rows, positions_and_types + 1, torch.zeros_like(word_rows)], dim=1)
    factors = torch.cat([scale, scale, torch.ones_like(scale)], dim=1)
    return FirstStates(hidden, _Sums(table, rows, factors))


def _can_look_up(adapter: Adapter, encoder: Any, block: Block, tokens: PackedTokens) -> bool:
    """Return whether the embeddings are a plain sum under a norm, and no gradients are needed."""
    if torch.is_grad_enabled() or encoder.training or tokens.embeds is not None:
        return False
    if torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu"):
        return False
    if not has_summed_embeddings(adapter, encoder):
        return False
    embeddings = encoder.embeddings
    if not all(is_bare(module, nn.Linear) for module in block.attention.projections.modules):
        return False
    weights = (embeddings.word_embeddings.weight, *_fixed_weights(embeddings, block))
    return (
        # On a GPU the products cost little and the rows would take its memory.
        all(is_readable(weight) for weight in weights)
        # The checksum of a row reads pairs of float32 as int64.
        and embeddings.word_embeddings.embedding_dim % 2 == 0
        and block.attention.projections.modules[0].in_features == embeddings.LayerNorm.normalized_shape[0]
    )


def has_summed_embeddings(adapter: Adapter, encoder: Any) -> bool:
    """Return whether the first layer takes a plain sum of embeddings under a norm, from modules without hooks."""
    # A projection between embeddings and layers would come after the norm.
    if adapter.summed_embeddings is None or hasattr(encoder, "embeddings_project"):
        return False
    embeddings = encoder.embeddings
    return (
        is_bare(embeddings, adapter.summed_embeddings)
        and is_bare(embeddings.LayerNorm, nn.LayerNorm)
        and all(is_bare(module, nn.Embedding) for module in embedding_tables(embeddings))
    )


def _lookup_for(cache: FirstLayerCache, encoder: Any, block: Block) -> _Lookup:
    """Return the look-up of an encoder, rebuilt if its weights have changed."""
    embeddings = encoder.embeddings
    weights = _fixed_weights(embeddings, block)
    source = checksums(weights)
    known = cache.lookup
    if known is None or known.source != source:
        with torch.inference_mode(False), torch.no_grad():
            known = _Lookup(embeddings, block, source)
        cache.lookup = known
    return known


def _fixed_weights(embeddings: Any, block: Block) -> list[Tensor]:
    """Return the weights that all projections depend on: all but the word embeddings."""
    modules = (*embedding_tables(embeddings)[1:], embeddings.LayerNorm, *block.attention.projections.modules)
    return [weight for module in modules for weight in module.parameters()]


def embedding_tables(embeddings: Any) -> list[Any]:
    """Return the embedding tables, word embeddings first."""
    names = ("word_embeddings", "position_embeddings", "token_type_embeddings")
    return [getattr(embeddings, name) for name in names if hasattr(embeddings, name)]


def _row_checksums(rows: Tensor) -> Tensor:
    """Return a checksum of the bits of each row. rows: (rows, width) -> (rows,)"""
    return rows.contiguous().view(torch.int64).sum(1)


def _unique(ids: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distinct ids where `wanted` is true, and an index of each in `ids`. ids, wanted: (tokens,)."""
    indices = wanted.nonzero().squeeze(1)
    unique, inverse = ids[indices].unique(return_inverse=True)
    return unique, indices.new_empty(len(unique)).index_copy_(0, inverse, indices)
