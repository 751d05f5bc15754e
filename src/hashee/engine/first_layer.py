"""The first layer's queries, keys and values, summed from rows that are kept for every token type and position.

What the first layer projects is a layer norm of a sum, `x = word + position + type`, and both the projection W and the
centring of the norm are linear, so `W norm(x) + b = r (W' word + W' position + W' type) + b'`: with the factor r that
scales x to unit variance, W' the projection with the norm's gain and centring folded in, and b' its biases. The
products are the same for every occurrence of a type, so each is computed once and looked up ever after.

What is kept belongs to the encoder and is checked against the contents of the weights in every forward pass: weights
may be written to in ways that no counter shows (`.data`, views, other processes, merged adapters). The projections,
norms and positions are hashed as a whole; of the word embeddings, the rows that the batch gathers anyway are summed.
"""

from dataclasses import dataclass
from threading import Lock
from typing import Any

import torch
import torch.nn.functional as F
import xxhash
from torch import Tensor, nn

from hashee.engine.adapter import Adapter, Tokens
from hashee.engine.block import Block
from hashee.engine.linear import is_bare

MEMORY = 128 << 20
"""Bytes that the rows of token types may take in one encoder."""


@dataclass(frozen=True)
class FirstStates:
    """The embedded tokens, and what the first layer projects them to."""

    hidden: Tensor
    """(tokens, width)"""
    projected: "_Sums"


@dataclass(frozen=True)
class _Sums:
    """Queries, keys and values of packed tokens, summed where they are asked for."""

    table: Tensor
    """(rows, 3 width)"""
    rows: Tensor
    """(tokens, 3) the rows of each token that are added up."""
    factors: Tensor
    """(tokens, 3) what they are multiplied by."""

    def __call__(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values of packed rows. rows: (rows,). Each (rows, width)"""
        summed = F.embedding_bag(
            self.rows.index_select(0, rows),
            self.table,
            mode="sum",
            per_sample_weights=self.factors.index_select(0, rows),
        )
        query, key, value = summed.chunk(3, dim=1)
        return query, key, value

    def select(self, rows: Tensor) -> "_Sums":
        """Return what is left when only some packed rows stay. rows: (rows,), rising."""
        return _Sums(self.table, self.rows.index_select(0, rows), self.factors.index_select(0, rows))


class _Rows:
    """Projected rows of token types, filled as types are met; a full one is replaced, never written over."""

    def __init__(self, fixed: Tensor, vocab_size: int) -> None:
        """fixed: (fixed, 3 width) rows that are always there: the constant b' first, then all types and positions."""
        row_bytes = fixed.shape[1] * fixed.element_size()
        self.capacity = min(vocab_size, MEMORY // row_bytes)
        # Memory that is never written to is never taken from the system.
        self.table = fixed.new_empty(len(fixed) + self.capacity, fixed.shape[1])
        self.table[: len(fixed)] = fixed
        self.place = torch.full((vocab_size,), -1)
        self.checksums = torch.zeros(vocab_size, dtype=torch.int64)
        self.first = len(fixed)
        self.used = 0

    def has_room_for(self, count: int) -> bool:
        return self.used + count <= self.capacity

    def add(self, ids: Tensor, checksums: Tensor, rows: Tensor) -> None:
        start = self.first + self.used
        self.table[start : start + len(ids)] = rows
        self.checksums[ids] = checksums
        # Only now, so that whoever reads at the same time never finds an unfinished row.
        self.place[ids] = torch.arange(start, start + len(ids))
        self.used += len(ids)


class _Lookup:
    """What stands in for the first layer's projections in one encoder, as long as its weights stay as they are."""

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
        places = embeddings.position_embeddings.weight.detach()
        self.positions = len(places)
        types = getattr(embeddings, "token_type_embeddings", None)
        if types is not None:
            places = (types.weight.detach()[:, None] + places).flatten(0, 1)
        self.fixed = torch.cat([constant[None], F.linear(places, self.weight)])
        self.rows = _Rows(self.fixed, embeddings.word_embeddings.num_embeddings)
        self.lock = Lock()

    def rows_of(self, ids: Tensor, words: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the table and the row of each token in it, computing those of new types.

        ids: (tokens,); words: (tokens, width) their word embeddings as they are now.
        """
        rows, checksums = self.rows, _row_checksums(words)
        place = rows.place[ids]
        if int(place.min()) >= 0 and torch.equal(rows.checksums[ids], checksums):
            return rows.table, place
        with self.lock:
            known = self.rows.place[ids] >= 0
            if not torch.equal(self.rows.checksums[ids[known]], checksums[known]):
                # The embeddings were written to, so nothing that was made from them is trusted.
                self._start_over()
                known = torch.zeros_like(known)
            new, first = _unique(ids, ~known)
            if not self.rows.has_room_for(len(new)):
                self._start_over()
                new, first = _unique(ids, torch.ones_like(known))
            if not self.rows.has_room_for(len(new)):
                return None
            self.rows.add(new, checksums[first], F.linear(words[first], self.weight))
            return self.rows.table, self.rows.place[ids]

    def _start_over(self) -> None:
        self.rows = _Rows(self.fixed, len(self.rows.place))


class FirstLayerCache:
    """The look-up of one encoder, which owns it; copies of the encoder, and what is pickled, start without one."""

    def __init__(self) -> None:
        self.lookup: _Lookup | None = None

    def clear(self) -> None:
        """Forget everything and free its memory."""
        self.lookup = None

    def __deepcopy__(self, memo: Any) -> "FirstLayerCache":
        return FirstLayerCache()

    def __reduce__(self) -> tuple[type["FirstLayerCache"], tuple[()]]:
        return FirstLayerCache, ()


def look_up(cache: FirstLayerCache, adapter: Adapter, encoder: Any, block: Block, tokens: Tokens) -> FirstStates | None:
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

    table, place = found
    # r word + r (position and type) + constant.
    rows = torch.stack([place, positions_and_types + 1, torch.zeros_like(place)], dim=1)
    factors = torch.cat([scale, scale, torch.ones_like(scale)], dim=1)
    return FirstStates(hidden, _Sums(table, rows, factors))


def _can_look_up(adapter: Adapter, encoder: Any, block: Block, tokens: Tokens) -> bool:
    """Say whether the embeddings are the sum that they should be, and nothing will be asked of their gradients."""
    if torch.is_grad_enabled() or encoder.training or tokens.embeds is not None or adapter.summed_embeddings is None:
        return False
    if torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu"):
        return False
    embeddings = encoder.embeddings
    modules: list[tuple[nn.Module, type[nn.Module]]] = [
        (embeddings, adapter.summed_embeddings),
        (embeddings.LayerNorm, nn.LayerNorm),
    ]
    modules += [(module, nn.Linear) for module in block.attention.projections.modules]
    modules += [(module, nn.Embedding) for module in _tables(embeddings)]
    if not all(is_bare(module, kind) for module, kind in modules):
        return False
    weights = (embeddings.word_embeddings.weight, *_fixed_weights(embeddings, block))
    return (
        # On a graphics card the products cost next to nothing and the rows would take its memory.
        all(_is_readable(weight) for weight in weights)
        # Checksums of rows are taken over pairs of entries.
        and embeddings.word_embeddings.embedding_dim % 2 == 0
        # A projection between embeddings and layers would come after the norm.
        and block.attention.projections.modules[0].in_features == embeddings.LayerNorm.normalized_shape[0]
        and not hasattr(encoder, "embeddings_project")
    )


def _lookup_for(cache: FirstLayerCache, encoder: Any, block: Block) -> _Lookup:
    """Return what is kept for an encoder, made anew if its weights are not those that it was made from."""
    embeddings = encoder.embeddings
    weights = _fixed_weights(embeddings, block)
    source = tuple(xxhash.xxh3_64_intdigest(weight.detach().numpy().data) for weight in weights)
    known = cache.lookup
    if known is None or known.source != source:
        with torch.inference_mode(False), torch.no_grad():
            known = _Lookup(embeddings, block, source)
        cache.lookup = known
    return known


def _fixed_weights(embeddings: Any, block: Block) -> list[Tensor]:
    """Return the weights that every token's projections depend on: all but the word embeddings."""
    modules = (*_tables(embeddings)[1:], embeddings.LayerNorm, *block.attention.projections.modules)
    return [weight for module in modules for weight in module.parameters()]


def _tables(embeddings: Any) -> list[Any]:
    """Return the embedding tables, the words' first."""
    names = ("word_embeddings", "position_embeddings", "token_type_embeddings")
    return [getattr(embeddings, name) for name in names if hasattr(embeddings, name)]


def _is_readable(weight: Tensor) -> bool:
    return (
        type(weight) in (Tensor, nn.Parameter)
        and weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and weight.is_contiguous()
    )


def _row_checksums(rows: Tensor) -> Tensor:
    """Return a checksum of the bits of each row. rows: (rows, width) -> (rows,)"""
    return rows.contiguous().view(torch.int64).sum(1)


def _unique(ids: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Return the different ids among those that are wanted, and where each stands. ids, wanted: (tokens,)"""
    places = wanted.nonzero().squeeze(1)
    unique, inverse = ids[places].unique(return_inverse=True)
    return unique, places.new_empty(len(unique)).index_copy_(0, inverse, places)
