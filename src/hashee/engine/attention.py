"""Attention of packed queries over packed keys, in two equivalent forms of different cost.

The plain form projects every token to a key and a value. The absorbed form folds the two projections into the query
side, per head: `q K^T = (q W_K) H^T` and `A V = (A H) W_V + b_V`, where H are the states themselves. Frozen tokens then
need no projection at all, which is cheaper when few tokens are active. The key bias shifts all scores of a query
equally, so the softmax cancels it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from hashee.engine import native
from hashee.engine.plan import AttentionLayout, Group, LayerPlan
from hashee.engine.relative_attention import RelativeDistances, RelativeScores


@dataclass(frozen=True)
class KeyValueWeights:
    """The projections that the absorbed form folds into the query side; each (attention width, width) as in a Linear.

    The attention width is that of all heads together: the width itself unless heads were pruned.
    """

    key: Tensor
    value: Tensor
    value_bias: Tensor | None

    def to(self, dtype: torch.dtype) -> "KeyValueWeights":
        """Return the same weights in another precision."""
        bias = None if self.value_bias is None else self.value_bias.to(dtype)
        return KeyValueWeights(self.key.to(dtype), self.value.to(dtype), bias)


@dataclass(frozen=True)
class Attention:
    """The settings of a layer's attention."""

    heads: int
    scale: float
    dropout: float = 0.0
    bias: Tensor | None = None
    """(sequences, heads, longest, longest) added to the scores, in the order of slots."""
    relative: RelativeScores | None = None
    """What distances between contents add to the scores."""
    shared_heads: int | None = None
    """Heads of keys and values; None: as many as of queries, otherwise several of these share one."""


@dataclass(frozen=True)
class PositionTerms:
    """How positions enter the scores of all layers of one attention type; computed once for a batch."""

    bias: Tensor | None = None
    """(sequences, heads, longest, longest) added to the scores, in the order of slots."""
    rotary: tuple[Tensor, Tensor] | None = None
    """Cosine and sine of the angles by which queries and keys are rotated; (tokens, head width / 2) each."""
    relative: RelativeDistances | None = None
    """Distances that queries and keys are multiplied with."""

    @property
    def any(self) -> bool:
        """Whether positions change the scores at all."""
        return self.bias is not None or self.rotary is not None or self.relative is not None

    def select(self, rows: Tensor, sequences: Tensor, longest: int) -> "PositionTerms":
        """Return the terms of the rows and sequences that stay in a batch.

        rows, sequences: (tokens,), (sequences,) their earlier numbers, rising; longest: tokens of the longest sequence.
        """
        bias, rotary, relative = self.bias, self.rotary, self.relative
        return PositionTerms(
            bias=None if bias is None else bias.index_select(0, sequences)[..., :longest, :longest],
            rotary=None if rotary is None else (rotary[0].index_select(0, rows), rotary[1].index_select(0, rows)),
            relative=None if relative is None else relative.select(sequences, longest),
        )

    def rotate(self, rows: Tensor, heads: int) -> Tensor:
        """Rotate the queries or keys of the first packed rows by their positions, in each head. (rows, width)"""
        if self.rotary is None:
            return rows
        cosine, sine = (angles[: len(rows), None] for angles in self.rotary)
        # In single precision, whatever the states have, as transformers does.
        first, second = rows.view(len(rows), heads, -1).float().chunk(2, dim=-1)
        rotated = torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)
        return rotated.flatten(1).to(rows.dtype)


def half_angles(angles: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Return cosine and sine for half a head: both halves are rotated by the same angles.

    angles: as transformers computes them, (1, tokens, head width) each. Returns (tokens, head width / 2) each.
    """
    cosine, sine = (values.squeeze(0).chunk(2, dim=-1)[0] for values in angles)
    return cosine, sine


QueryKeyValue = tuple[Tensor, Tensor, Tensor]
"""Queries, keys and values of a group: (sequences, heads, slots, head width) each."""


def attend(query: Tensor, key: Tensor, value: Tensor, layout: AttentionLayout, attention: Attention) -> Tensor:
    """Let each active token attend to every token of its own sequence.

    query: (active, width); key, value: (tokens, width), narrower where heads share them. Returns (active, width).
    """

    shared = attention.heads if attention.shared_heads is None else attention.shared_heads

    def gather(group: Group) -> QueryKeyValue:
        # Frozen tokens stay keys and values, so only the queries become fewer.
        queries = _by_sequence(query.index_select(0, group.query_slots.flatten()), group.query_slots, attention.heads)
        keys, values = (
            _by_sequence(rows.index_select(0, group.key_slots.flatten()), group.key_slots, shared)
            for rows in (key, value)
        )
        if shared != attention.heads:
            keys, values = (rows.repeat_interleave(attention.heads // shared, dim=1) for rows in (keys, values))
        return queries, keys, values

    return _attend(gather, layout, attention)


def attend_looked_up(
    looked_up: Callable[[Tensor], tuple[Tensor, Tensor, Tensor]], layer: LayerPlan, attention: Attention
) -> Tensor:
    """Do what `attend` does with queries, keys and values that are looked up group by group.

    looked_up: (rows,) packed rows -> the three, (rows, width) each. Returns (active, width).
    """

    def gather(group: Group) -> QueryKeyValue:
        query, key, value = (
            _by_sequence(rows, group.key_slots, attention.heads) for rows in looked_up(group.key_slots.flatten())
        )
        # Active tokens have the first slots.
        return query[:, :, : group.query_slots.shape[1]], key, value

    return _attend(gather, layer, attention)


def _attend(gather: Callable[[Group], QueryKeyValue], layout: AttentionLayout, attention: Attention) -> Tensor:
    contexts = []
    for group in layout.groups:
        query, key, value = gather(group)
        context = F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=_mask(group, _bias(group, attention, query, key)),
            dropout_p=attention.dropout,
            scale=attention.scale,
        )
        contexts.append(context.transpose(1, 2).flatten(2).flatten(0, 1))
    return _joined(contexts).index_select(0, layout.slot_of_row)


def attend_absorbed(
    query: Tensor, states: Tensor, weights: KeyValueWeights, layer: LayerPlan, *, heads: int, scale: float
) -> Tensor:
    """Do what `attend` does, in inference, without projecting the tokens to keys and values.

    query: (active, attention width); states: (tokens, width) the states that keys and values would be projected from.
    Returns (active, attention width).
    """
    if _runs_in_kernel(query, states, weights, heads):
        tensors = (weights.key, weights.value, weights.value_bias)
        return native.attend_absorbed(query, states, tensors, layer.sequences, heads=heads, scale=scale)
    active, width = len(query), states.shape[1]
    # Under autocast queries are in half precision while states and weights are not, and products with `out=` are not
    # cast.
    states, weights = states.to(query.dtype), weights.to(query.dtype)
    # Head-major products are written directly into row-major memory: a transposed copy would cost as much again.
    folded = query.new_empty(active, heads, width)
    torch.bmm(
        query.view(active, heads, -1).transpose(0, 1),
        weights.key.view(heads, -1, width),
        out=folded.transpose(0, 1),
    )
    # All heads of a sequence attend to the same states, so they are rows of one product.
    weighted_sums = []
    for group in layer.groups:
        sequences, slots = group.query_slots.shape
        queries_of_group = folded.index_select(0, group.query_slots.flatten()).view(sequences, slots * heads, width)
        keys = states.index_select(0, group.key_slots.flatten()).view(sequences, -1, width)
        scores = torch.bmm(queries_of_group, keys.transpose(1, 2)).mul_(scale)
        if group.occupied is not None:
            scores.masked_fill_(~group.occupied[:, None, :], float("-inf"))
        weighted_sums.append(torch.bmm(scores.softmax(-1), keys).view(sequences * slots, heads, width))
    weighted = _joined(weighted_sums).index_select(0, layer.slot_of_row)
    context = torch.empty_like(query, memory_format=torch.contiguous_format)
    torch.bmm(
        weighted.transpose(0, 1),
        weights.value.view(heads, -1, width).transpose(1, 2),
        out=context.view(active, heads, -1).transpose(0, 1),
    )
    return context if weights.value_bias is None else context.add_(weights.value_bias)


def _runs_in_kernel(query: Tensor, states: Tensor, weights: KeyValueWeights, heads: int) -> bool:
    # The kernel takes heads that are as wide together as the states.
    if query.shape[1] != states.shape[1]:
        return False
    return query.shape[1] // heads % 4 == 0 and native.supports((query, states), (weights.key, weights.value))


def _by_sequence(rows: Tensor, slots: Tensor, heads: int) -> Tensor:
    """View rows that are in the order of slots: (sequences * slots, width) -> (sequences, heads, slots, head width)."""
    return rows.view(*slots.shape, heads, -1).transpose(1, 2)


def _bias(group: Group, attention: Attention, query: Tensor, key: Tensor) -> Tensor | None:
    """Return what positions add to the scaled scores of a group: (sequences, heads, query slots, key slots), or None.

    query, key: (sequences, heads, slots, head width).
    """
    if attention.relative is not None:
        return attention.relative.of(query, key, group) * attention.scale
    if attention.bias is None:
        return None
    return attention.bias[group.sequences, :, : query.shape[2], : key.shape[2]].to(query.dtype)


def _mask(group: Group, bias: Tensor | None) -> Tensor | None:
    """Combine empty slots and the position bias of a group into the mask of scaled_dot_product_attention."""
    occupied = None if group.occupied is None else group.occupied[:, None, None, :]
    if group.visible is not None:
        assert bias is None, "no family has both a window and a position bias"
        return group.visible[:, None]
    if bias is None:
        return occupied
    return bias if occupied is None else bias.masked_fill(~occupied, float("-inf"))


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
