"""Attention of packed queries over packed keys: two forms of one answer, at different prices.

The plain form projects every token to a key and a value. The absorbed form folds the two projections into the query
side, per head: `q K^T = (q W_K) H^T` and `A V = (A H) W_V + b_V`, where H are the states themselves. Frozen tokens then
need no projection at all, which pays when few tokens are active. The key bias shifts all scores of a query alike, so
the softmax cancels it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from hashee.engine import native
from hashee.engine.plan import Group, LayerPlan, Seating


@dataclass(frozen=True)
class Weights:
    """The projections that the absorbed form folds into the query side; each (attention width, width) as in a Linear.

    The attention width is that of all heads together: the width itself unless heads were pruned.
    """

    key: Tensor
    value: Tensor
    value_bias: Tensor | None

    def to(self, dtype: torch.dtype) -> "Weights":
        """Return the same weights in another precision."""
        bias = None if self.value_bias is None else self.value_bias.to(dtype)
        return Weights(self.key.to(dtype), self.value.to(dtype), bias)


@dataclass(frozen=True)
class Attention:
    """How a layer attends, whatever its queries, keys and values are."""

    heads: int
    scale: float
    dropout: float = 0.0
    bias: Tensor | None = None
    """(sequences, heads, longest, longest) added to the scores, in seat order."""


@dataclass(frozen=True)
class PositionTerms:
    """How positions enter the scores of layers of one kind; made once for a batch."""

    bias: Tensor | None = None
    """(sequences, heads, longest, longest) added to the scores, in seat order."""
    rotary: tuple[Tensor, Tensor] | None = None
    """Cosine and sine of the angles by which queries and keys are turned; (tokens, head width / 2) each."""

    @property
    def any(self) -> bool:
        """Whether scores are anything else than products of query and key."""
        return self.bias is not None or self.rotary is not None

    def select(self, rows: Tensor, sequences: Tensor, longest: int) -> "PositionTerms":
        """Return the terms of what is left of a batch.

        rows, sequences: (tokens,), (sequences,) what is left, in its order; longest: tokens of the longest sequence.
        """
        bias, rotary = self.bias, self.rotary
        return PositionTerms(
            bias=None if bias is None else bias.index_select(0, sequences)[..., :longest, :longest],
            rotary=None if rotary is None else (rotary[0].index_select(0, rows), rotary[1].index_select(0, rows)),
        )

    def rotate(self, rows: Tensor, heads: int) -> Tensor:
        """Turn the queries or keys of the first packed rows by their positions, in each head. (rows, width)"""
        if self.rotary is None:
            return rows
        cosine, sine = (angles[: len(rows), None] for angles in self.rotary)
        # In single precision, whatever the states have, as transformers does.
        first, second = rows.view(len(rows), heads, -1).float().chunk(2, dim=-1)
        turned = torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)
        return turned.flatten(1).to(rows.dtype)


Seated = tuple[Tensor, Tensor, Tensor]
"""Queries, keys and values by sequence: (sequences, heads, seats, head width) each."""


def attend(query: Tensor, key: Tensor, value: Tensor, layer: Seating, attention: Attention) -> Tensor:
    """Let each active token read every token of its own sequence.

    query: (active, width); key, value: (tokens, width). Returns (active, width).
    """

    def seated(group: Group) -> Seated:
        # Frozen tokens keep answering as keys, so only queries shrink.
        sizes = (group.query_seats, group.seats, group.seats)
        query_seats, key_seats, value_seats = (
            _by_sequence(rows.index_select(0, seats.flatten()), seats, attention.heads)
            for rows, seats in zip((query, key, value), sizes, strict=True)
        )
        return query_seats, key_seats, value_seats

    return _attend(seated, layer, attention)


def attend_looked_up(
    looked_up: Callable[[Tensor], tuple[Tensor, Tensor, Tensor]], layer: LayerPlan, attention: Attention
) -> Tensor:
    """Do what `attend` does with queries, keys and values that are looked up group by group, where they are read.

    looked_up: (rows,) packed rows -> the three, (rows, width) each. Returns (active, width).
    """

    def seated(group: Group) -> Seated:
        query, key, value = (
            _by_sequence(rows, group.seats, attention.heads) for rows in looked_up(group.seats.flatten())
        )
        # The tokens that ask have the first seats.
        return query[:, :, : group.query_seats.shape[1]], key, value

    return _attend(seated, layer, attention)


def _attend(seated: Callable[[Group], Seated], layer: Seating, attention: Attention) -> Tensor:
    contexts = []
    for group in layer.groups:
        query, key, value = seated(group)
        context = F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=_mask(group, attention.bias, query),
            dropout_p=attention.dropout,
            scale=attention.scale,
        )
        contexts.append(context.transpose(1, 2).flatten(2).flatten(0, 1))
    return _joined(contexts).index_select(0, layer.unseat)


def attend_absorbed(
    query: Tensor, states: Tensor, weights: Weights, layer: LayerPlan, *, heads: int, scale: float
) -> Tensor:
    """Do what `attend` does, for inference, without projecting the tokens to keys and values.

    query: (active, attention width); states: (tokens, width) what keys and values would be projected from.
    Returns (active, attention width).
    """
    if _takes_kernel(query, states, weights, heads):
        tensors = (weights.key, weights.value, weights.value_bias)
        return native.attend_absorbed(query, states, tensors, layer.sequences, heads=heads, scale=scale)
    active, width = len(query), states.shape[1]
    # Under autocast queries come in half precision from states and weights that are not, and products that are written
    # into a given place are not cast.
    states, weights = states.to(query.dtype), weights.to(query.dtype)
    # Head-major products are written straight into row-major places: a later re-layout would cost as much again.
    folded = query.new_empty(active, heads, width)
    torch.bmm(
        query.view(active, heads, -1).transpose(0, 1),
        weights.key.view(heads, -1, width),
        out=folded.transpose(0, 1),
    )
    # All heads of a sequence read the same states, so they are rows of one product.
    reads = []
    for group in layer.groups:
        sequences, queries = group.query_seats.shape
        asking = folded.index_select(0, group.query_seats.flatten()).view(sequences, queries * heads, width)
        memory = states.index_select(0, group.seats.flatten()).view(sequences, -1, width)
        scores = torch.bmm(asking, memory.transpose(1, 2)).mul_(scale)
        if group.occupied is not None:
            scores.masked_fill_(~group.occupied[:, None, :], float("-inf"))
        reads.append(torch.bmm(scores.softmax(-1), memory).view(sequences * queries, heads, width))
    read = _joined(reads).index_select(0, layer.unseat)
    context = torch.empty_like(query, memory_format=torch.contiguous_format)
    torch.bmm(
        read.transpose(0, 1),
        weights.value.view(heads, -1, width).transpose(1, 2),
        out=context.view(active, heads, -1).transpose(0, 1),
    )
    return context if weights.value_bias is None else context.add_(weights.value_bias)


def _takes_kernel(query: Tensor, states: Tensor, weights: Weights, heads: int) -> bool:
    # The kernel takes heads that are as wide together as the states.
    if query.shape[1] != states.shape[1]:
        return False
    return query.shape[1] // heads % 4 == 0 and native.takes((query, states), (weights.key, weights.value))


def _by_sequence(rows: Tensor, seats: Tensor, heads: int) -> Tensor:
    """View rows that lie in the order of seats: (sequences * seats, width) -> (sequences, heads, seats, head width)."""
    return rows.view(*seats.shape, heads, -1).transpose(1, 2)


def _mask(group: Group, bias: Tensor | None, query: Tensor) -> Tensor | None:
    """Combine empty seats and the position bias into what scaled_dot_product_attention adds to the scores."""
    hidden = None if group.occupied is None else group.occupied[:, None, None, :]
    if group.visible is not None:
        assert bias is None, "a position bias has no window"
        return group.visible[:, None]
    if bias is None:
        return hidden
    longest = group.seats.shape[1]
    bias = bias[group.sequences, :, : group.query_seats.shape[1], :longest].to(query.dtype)
    return bias if hidden is None else bias.masked_fill(~hidden, float("-inf"))


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
