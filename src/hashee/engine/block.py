"""The maths of one encoder layer on packed rows; the only place where it is written."""

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
    PositionTerms,
    Weights,
    attend,
    attend_absorbed,
    attend_looked_up,
)
from hashee.engine.linear import MOST_ROWS, is_bare, is_bare_linear, is_plain_product, project
from hashee.engine.local_attention import within_window
from hashee.engine.parts import AttentionPart, FeedForwardPart, SeparateProjections, drop
from hashee.engine.plan import LayerPlan, Plan

SLICE = 1024
"""Rows that run through the rest of a layer together: what lies between its products should stay in cache."""


@dataclass(frozen=True)
class Dropout:
    """Dropout probabilities of a layer, by where they apply."""

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
    """What a layer's states were projected to when it last ran (ALBERT)."""

    key: Tensor
    value: Tensor
    """(tokens, width) each."""
    changed: int
    """The first rows, whose states have changed since."""

    def select(self, rows: Tensor) -> "Projected":
        """Return what is left when only some packed rows stay. rows: (rows,), rising."""
        changed = int((rows < self.changed).sum())
        return Projected(self.key.index_select(0, rows), self.value.index_select(0, rows), changed)


class LookedUp(Protocol):
    """What the states of the first layer are projected to, without a product."""

    def __call__(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values of packed rows. rows: (rows,). Each (rows, width)"""

    def select(self, rows: Tensor) -> "LookedUp":
        """Return what is left when only some packed rows stay. rows: (rows,), rising."""


@dataclass(frozen=True)
class Step:
    """What one layer leaves behind: the states of its active rows, and its keys and values in the plain form."""

    updated: Tensor
    """(active, width)"""
    projected: Projected | None


def apply_block(
    block: Block,
    hidden: Tensor,
    plan: Plan,
    positions: PositionTerms | None = None,
    known: Projected | LookedUp | None = None,
) -> Step:
    """Run one layer.

    hidden: (tokens, width) packed states; positions: how they enter the scores; known: what is known of the projections
    already.
    """
    layer, part = plan.layer(block.layer), block.attention
    positions = PositionTerms() if positions is None else positions
    dropout = block.dropout if block.training else Dropout()
    active = hidden[: layer.active]
    attention = Attention(part.heads, part.scale, dropout.scores, positions.bias)
    projected = None
    if known is not None and not isinstance(known, Projected):
        assert positions.rotary is None and part.window is None, "no family that is looked up has them"
        context = attend_looked_up(known, layer, attention)
    else:
        # Keys need the norm too in pre-norm models, so it runs over the frozen rows as well.
        source = block.attention_norm(hidden) if block.pre_norm else hidden
        if not positions.any and dropout.scores == 0 and absorbs(block, plan, layer, known):
            query = part.projections.queries(source[: layer.active])
            _, key, value = part.projections.modules
            weights = Weights(key.weight, value.weight, value.bias)  # type: ignore[arg-type]
            context = attend_absorbed(query, source, weights, layer, heads=part.heads, scale=part.scale)
        else:
            query, projected = _project(part, source, layer.active, positions, known)
            seated = layer if part.window is None else within_window(layer, part.window)
            context = attend(query, projected.key, projected.value, seated, attention)
    if torch.is_grad_enabled() or hidden.device.type != "cpu" or layer.active <= SLICE:
        return Step(_after_attention(block, dropout, context, active), projected)
    # From here on every row is on its own.
    parts = math.ceil(layer.active / SLICE)
    slices = zip(context.tensor_split(parts), active.tensor_split(parts), strict=True)
    return Step(torch.cat([_after_attention(block, dropout, *rows) for rows in slices]), projected)


def _after_attention(block: Block, dropout: Dropout, context: Tensor, active: Tensor) -> Tensor:
    """Run what is left of a layer once its rows have read the others.

    context: (rows, width of all heads together); active: (rows, width). Returns (rows, width).
    """
    if dropout == Dropout() and (kernel := _rest_kernel(block, context, active)) is not None:
        return kernel()
    attended = drop(project(block.attention.output, context), dropout.attention_output) + active
    if not block.pre_norm:
        attended = block.attention_norm(attended)

    source = block.feed_forward_norm(attended) if block.pre_norm else attended
    inner = drop(block.feed_forward.inner(source), dropout.activation)
    updated = drop(project(block.feed_forward.contract, inner), dropout.feed_forward) + attended
    if not block.pre_norm:
        updated = block.feed_forward_norm(updated)

    if block.clamp_half and updated.dtype == torch.float16:
        limit = torch.finfo(torch.float16).max - 1000
        updated = updated.clamp(-limit, limit)
    return updated


def _rest_kernel(block: Block, context: Tensor, active: Tensor) -> Callable[[], Tensor] | None:
    """Return the kernel, or kernels, that do what follows attention without dropout, if there are any that can."""
    weights = rest_weights(block, context) if len(context) else None
    if weights is None or not native.takes((context, active), ()):
        return None
    few = len(context) <= MOST_ROWS
    if few and context.shape[1] != active.shape[1]:
        return None  # its kernel takes an output projection as wide as the states, which pruned heads do not have
    rest = native.rest if few else native.rest_of_many
    return partial(rest, context, active, weights, epsilons(block))


def rest_weights(block: Block, rows: Tensor) -> list[Tensor] | None:
    """Return the weights of what follows attention in the order of `native.rest`, if kernels can do that for rows."""
    part = block.feed_forward
    products = (block.attention.output, part.expand, part.contract)
    norms = (block.attention_norm, block.feed_forward_norm)
    if (
        block.pre_norm
        or part.gated
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
        or not native.takes((), tuple(weights[::2][n] for n in (0, 2, 3)))
    ):
        return None
    return list(weights)


def epsilons(block: Block) -> tuple[float, float]:
    """Return those of the norms, which are bare."""
    return block.attention_norm.eps, block.feed_forward_norm.eps  # type: ignore[return-value]


def absorbs(block: Block, plan: Plan, layer: LayerPlan, known: Projected | None = None) -> bool:
    """Say whether the absorbed form can run here and is the cheaper one for this batch."""
    part = block.attention.projections
    if torch.is_grad_enabled() or block.attention.window is not None or not isinstance(part, SeparateProjections):
        return False
    if not (is_bare_linear(part.key) and is_bare_linear(part.value)):
        return False
    projected = plan.tokens if known is None else known.changed
    sizes = AttentionSizes(part.key.in_features, block.attention.heads, part.key.out_features)  # type: ignore[arg-type]
    return bool(absorbing_saves(projected, layer.active, layer.read, sizes) > 0)


def _project(
    part: AttentionPart, source: Tensor, active: int, positions: PositionTerms, known: Projected | None
) -> tuple[Tensor, Projected]:
    """Return the active rows' queries, and the keys and values of all tokens.

    Those of frozen tokens are what they were when the layer last ran. source: (tokens, width).
    """
    if known is None:
        query, key, value = part.projections.all_three(source, active)
        query, key = (positions.rotate(rows, part.heads) for rows in (query, key))
        return query, Projected(key, value, changed=active)
    query = positions.rotate(part.projections.queries(source[:active]), part.heads)
    if known.changed == 0:
        return query, Projected(known.key, known.value, changed=active)
    fresh_key, fresh_value = part.projections.keys_and_values(source[: known.changed])
    key = torch.cat([positions.rotate(fresh_key, part.heads), known.key[known.changed :]])
    value = torch.cat([fresh_value, known.value[known.changed :]])
    return query, Projected(key, value, changed=active)
