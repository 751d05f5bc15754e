"""The forward pass of one encoder layer on packed rows, for all families."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import LayerNorm, Module

from hashee.cost.macs import AttentionSizes, absorbing_saves
from hashee.engine import native
from hashee.engine.activation import is_gelu
from hashee.engine.attention import (
    Attention,
    KeyValueWeights,
    PositionTerms,
    attend,
    attend_absorbed,
    attend_looked_up,
)
from hashee.engine.linear import MAX_ROWS, is_bare, is_bare_linear, is_plain_product, project
from hashee.engine.local_attention import within_window
from hashee.engine.parts import AttentionPart, FeedForwardPart, SeparateProjections, drop
from hashee.engine.plan import LayerPlan, Plan

SLICE = 1024
"""Rows that pass the post-attention part together, so that its intermediate states stay in cache."""


@dataclass(frozen=True)
class Dropout:
    """The dropout probabilities of a layer."""

    attention_output: float = 0.0
    scores: float = 0.0
    activation: float = 0.0
    feed_forward: float = 0.0


@dataclass(frozen=True)
class Block:
    """One Hugging Face layer as an attention part and a feed-forward part; the parameters stay where they were."""

    layer: int
    """Exit layer this block belongs to, from 1; several blocks may share one (ALBERT's inner groups)."""
    attention: AttentionPart
    attention_norm: Module
    feed_forward: FeedForwardPart
    feed_forward_norm: Module
    dropout: Dropout
    training: bool
    """Whether dropout is on."""
    pre_norm: bool = False
    """Norms before the sub-layers (mBART, pre-norm RoBERTa, ModernBERT) instead of after the residual sum (BERT)."""
    clamp_half: bool = False
    """Keep float16 states finite, as BART and mBART do."""


@dataclass(frozen=True)
class Projected:
    """Keys and values of a layer from when its weights last ran (ALBERT)."""

    key: Tensor
    value: Tensor
    """(tokens, width) each."""
    changed: int
    """Number of first rows whose states have changed since."""

    def select(self, rows: Tensor) -> "Projected":
        """Return the projections of the packed rows that stay. rows: (rows,), rising."""
        changed = int((rows < self.changed).sum())
        return Projected(self.key.index_select(0, rows), self.value.index_select(0, rows), changed)


class LookedUp(Protocol):
    """Queries, keys and values of the first layer, looked up instead of projected."""

    def __call__(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values of packed rows, (rows, width) each. rows: (rows,)."""

    def select(self, rows: Tensor) -> "LookedUp":
        """Return the projections of the packed rows that stay. rows: (rows,), rising."""


@dataclass(frozen=True)
class LayerOutput:
    """The new states of a layer's active rows, and its keys and values if it projected any."""

    updated: Tensor
    """(active, width)"""
    projected: Projected | None


def apply_block(
    block: Block,
    hidden: Tensor,
    plan: Plan,
    positions: PositionTerms | None = None,
    cached: Projected | LookedUp | None = None,
) -> LayerOutput:
    """Run one layer.

    hidden: (tokens, width) packed states; positions: how they enter the scores; cached: projections that need not be
    computed.
    """
    layer, part = plan.layer(block.layer), block.attention
    positions = PositionTerms() if positions is None else positions
    dropout = block.dropout if block.training else Dropout()
    active = hidden[: layer.active]
    attention = Attention(part.heads, part.scale, dropout.scores, positions.bias)
    projected = None
    if cached is not None and not isinstance(cached, Projected):
        assert positions.rotary is None and part.window is None, "no family with looked-up projections has them"
        context = attend_looked_up(cached, layer, attention)
    else:
        # Keys need the norm too in pre-norm models, so it runs over the frozen rows as well.
        source = block.attention_norm(hidden) if block.pre_norm else hidden
        if not positions.any and dropout.scores == 0 and should_absorb(block, plan, layer, cached):
            query = part.projections.queries(source[: layer.active])
            _, key, value = part.projections.modules
            weights = KeyValueWeights(key.weight, value.weight, value.bias)  # type: ignore[arg-type]
            context = attend_absorbed(query, source, weights, layer, heads=part.heads, scale=part.scale)
        else:
            query, projected = _project(part, source, layer.active, positions, cached)
            layout = layer if part.window is None else within_window(layer, part.window)
            context = attend(query, projected.key, projected.value, layout, attention)
    if torch.is_grad_enabled() or hidden.device.type != "cpu" or layer.active <= SLICE:
        return LayerOutput(_post_attention(block, dropout, context, active), projected)
    # After attention every row is computed independently of the others.
    parts = math.ceil(layer.active / SLICE)
    slices = zip(context.tensor_split(parts), active.tensor_split(parts), strict=True)
    return LayerOutput(torch.cat([_post_attention(block, dropout, *rows) for rows in slices]), projected)


def _post_attention(block: Block, dropout: Dropout, context: Tensor, active: Tensor) -> Tensor:
    """Run the output projection, the feed-forward and the norms.

    context: (rows, width of all heads together); active: (rows, width). Returns (rows, width).
    """
    if dropout == Dropout() and (kernel := _post_attention_kernel(block, context, active)) is not None:
        return kernel()
    attended = drop(project(block.attention.output, context), dropout.attention_output) + active
    if not block.pre_norm:
        attended = block.attention_norm(attended)
    return feed_forward(block, dropout, attended)


def feed_forward(block: Block, dropout: Dropout, attended: Tensor) -> Tensor:
    """Run the feed-forward with its norm. attended: (rows, width), states after attention. Returns (rows, width)."""
    source = block.feed_forward_norm(attended) if block.pre_norm else attended
    inner = drop(block.feed_forward.inner(source), dropout.activation)
    updated = drop(project(block.feed_forward.contract, inner), dropout.feed_forward) + attended
    if not block.pre_norm:
        updated = block.feed_forward_norm(updated)

    if block.clamp_half and updated.dtype == torch.float16:
        limit = torch.finfo(torch.float16).max - 1000
        updated = updated.clamp(-limit, limit)
    return updated


def _post_attention_kernel(block: Block, context: Tensor, active: Tensor) -> Callable[[], Tensor] | None:
    """Return a call of the kernels that compute the post-attention part without dropout, or None if none can."""
    weights = post_attention_weights(block, context) if len(context) else None
    if weights is None or not native.supports((context, active), ()):
        return None
    few = len(context) <= MAX_ROWS
    if few and context.shape[1] != active.shape[1]:
        return None  # its kernel takes an output projection as wide as the states, which pruned heads do not have
    kernel = native.post_attention if few else native.post_attention_of_many
    return partial(kernel, context, active, weights, epsilons(block))


def post_attention_weights(block: Block, rows: Tensor) -> list[Tensor] | None:
    """Return the weights in the order of `native.post_attention`, or None if kernels cannot run the block."""
    part = block.feed_forward
    products = (block.attention.output, part.expand, part.contract)
    norms = (block.attention_norm, block.feed_forward_norm)
    if (
        block.pre_norm
        or part.gated
        or part.gate is not None
        or not is_gelu(part.activation)
        or not all(is_plain_product(module, rows) for module in products)
        or not all(is_bare(norm, LayerNorm) for norm in norms)
    ):
        return None
    modules = (block.attention.output, block.attention_norm, part.expand, part.contract, block.feed_forward_norm)
    weights = [weight for module in modules for weight in module._parameters.values() if weight is not None]
    vectors = [weight for weight in weights if weight.ndim == 1]
    if (
        len(weights) != 2 * len(modules)
        or any(vector.dtype != torch.float32 or not vector.is_contiguous() for vector in vectors)
        or not native.supports((), tuple(weights[::2][n] for n in (0, 2, 3)))
    ):
        return None
    return list(weights)


def epsilons(block: Block) -> tuple[float, float]:
    """Return the epsilons of the two norms, which are plain LayerNorms."""
    return block.attention_norm.eps, block.feed_forward_norm.eps  # type: ignore[return-value]


def should_absorb(block: Block, plan: Plan, layer: LayerPlan, cached: Projected | None = None) -> bool:
    """Return whether the absorbed form can run here and is the cheaper one for this batch."""
    part = block.attention.projections
    if torch.is_grad_enabled() or block.attention.window is not None or not isinstance(part, SeparateProjections):
        return False
    if not (is_bare_linear(part.key) and is_bare_linear(part.value)):
        return False
    projected = plan.tokens if cached is None else cached.changed
    sizes = AttentionSizes(part.key.in_features, block.attention.heads, part.key.out_features)  # type: ignore[arg-type]
    return bool(absorbing_saves(projected, layer.active, layer.pairs, sizes) > 0)


def _project(
    part: AttentionPart, source: Tensor, active: int, positions: PositionTerms, cached: Projected | None
) -> tuple[Tensor, Projected]:
    """Return the queries of the active rows, and the keys and values of all tokens.

    Rows that have not changed take theirs from `cached`. source: (tokens, width).
    """
    if cached is None:
        query, key, value = part.projections.all_three(source, active)
        query, key = (positions.rotate(rows, part.heads) for rows in (query, key))
        return query, Projected(key, value, changed=active)
    query = positions.rotate(part.projections.queries(source[:active]), part.heads)
    if cached.changed == 0:
        return query, Projected(cached.key, cached.value, changed=active)
    fresh_key, fresh_value = part.projections.keys_and_values(source[: cached.changed])
    key = torch.cat([positions.rotate(fresh_key, part.heads), cached.key[cached.changed :]])
    value = torch.cat([fresh_value, cached.value[cached.changed :]])
    return query, Projected(key, value, changed=active)
