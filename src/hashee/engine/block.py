"""The forward pass of one encoder layer on packed rows, for all families."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import LayerNorm, Linear, Module

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
from hashee.engine.int8 import Int8Linear
from hashee.engine.linear import is_bare, is_bare_linear, is_plain_product, project
from hashee.engine.local_attention import within_window
from hashee.engine.native import int8, training
from hashee.engine.native.training import Sequences
from hashee.engine.parts import AttentionPart, FeedForwardPart, SeparateProjections, drop
from hashee.engine.plan import LayerPlan, Plan
from hashee.engine.relative_attention import RelativeScores
from hashee.engine.trained_layer import Pass, drops, product_type, train_layer, weights_of

INT8_PRODUCT = 0.3
"""Time of a multiply-accumulate in an int8 product, relative to one in float32; attention itself stays in float32."""
SLICE = 1024
"""Rows that pass the post-attention part together, so that its intermediate states stay in cache."""


@dataclass(frozen=True)
class Dropout:
    """The dropout probabilities of a layer."""

    attention_output: float = 0.0
    scores: float = 0.0
    distances: float = 0.0
    """Of the embeddings of relative positions."""
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
    if cached is None and not positions.any:
        updated = layer_in_kernels(block, dropout, hidden, layer)
        if updated is not None:
            return LayerOutput(updated, projected=None)
    active = hidden[: layer.active]
    attention = Attention(part.heads, part.scale, dropout.scores, positions.bias, shared_heads=part.shared_heads)
    projected = None
    if cached is not None and not isinstance(cached, Projected):
        plain = positions.rotary is None and positions.relative is None and part.window is None
        assert plain, "no family with looked-up projections has them"
        context = attend_looked_up(cached, layer, attention)
    else:
        # Keys need the norm too in pre-norm models, so it runs over the frozen rows as well.
        source = block.attention_norm(hidden) if block.pre_norm else hidden
        if not positions.any and dropout.scores == 0 and should_absorb(block, plan, layer, cached):
            context = _attend_absorbed(part, source, layer)
        else:
            query, projected = _project(part, source, layer.active, positions, cached)
            layout = layer if part.window is None else within_window(layer, part.window)
            attention = replace(attention, relative=_relative_scores(part, positions, dropout))
            context = attend(query, projected.key, projected.value, layout, attention)
    if torch.is_grad_enabled() or hidden.device.type != "cpu" or layer.active <= SLICE:
        return LayerOutput(_post_attention(block, dropout, context, active), projected)
    # After attention every row is computed independently of the others.
    parts = math.ceil(layer.active / SLICE)
    slices = zip(context.tensor_split(parts), active.tensor_split(parts), strict=True)
    return LayerOutput(torch.cat([_post_attention(block, dropout, *rows) for rows in slices]), projected)


def layer_in_kernels(block: Block, dropout: Dropout, hidden: Tensor, layer: LayerPlan) -> Tensor | None:
    """Run a layer in kernels that have gradients. Returns (active, width), or None if they cannot train it."""
    dtype, part, inner = product_type(hidden), block.attention, block.feed_forward
    if dtype is None or block.pre_norm or inner.gated or inner.gate is not None or dropout.activation:
        return None
    plain = part.window is None and part.distances is None and part.shared_heads == part.heads
    if not plain or not isinstance(part.projections, SeparateProjections):
        return None
    linears = (*part.projections.modules, part.output, inner.expand, inner.contract)
    weights = weights_of(linears, (block.attention_norm, block.feed_forward_norm), inner.activation)
    # Kernels take heads of whole vectors that are together as wide as the states, which pruned ones are not.
    if weights is None or len(weights.query) != hidden.shape[1] or hidden.shape[1] % (8 * part.heads):
        return None
    scores, *outputs = drops(dropout.scores, dropout.attention_output, dropout.feed_forward)
    sequences = Sequences(*layer.sequences)
    attention = training.Attention(sequences, part.heads, part.scale, scores)
    settings = Pass(attention, epsilons(block), (outputs[0], outputs[1]), layer.active, dtype)
    return train_layer(hidden, weights, settings)


def _attend_absorbed(part: AttentionPart, source: Tensor, layer: LayerPlan) -> Tensor:
    """Project the queries and run the absorbed form. source: (tokens, width). Returns (active, attention width)."""
    query = part.projections.queries(source[: layer.active])
    _, key, value = part.projections.modules
    if isinstance(key, Int8Linear) and isinstance(value, Int8Linear):
        settings = int8.AttentionSettings(part.heads, part.scale)
        return int8.attend_absorbed(query.contiguous(), source, (key, value), layer.sequences, settings)
    weights = KeyValueWeights(key.weight, value.weight, value.bias)  # type: ignore[arg-type]
    return attend_absorbed(query, source, weights, layer, heads=part.heads, scale=part.scale)


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
    if not len(context) or not native.supports((context, active), ()):
        return None
    if (part := int8_post_attention(block, context)) is not None:
        return partial(int8.post_attention, context, active, part)
    weights = post_attention_weights(block, context)
    # The kernel takes an output projection as wide as the states, which pruned heads do not have.
    if weights is None or context.shape[1] != active.shape[1]:
        return None
    return partial(native.post_attention, context, active, weights, epsilons(block))


def post_attention_weights(block: Block, rows: Tensor) -> list[Tensor] | None:
    """Return the weights in the order of `native.post_attention`, or None if kernels cannot run the block."""
    part = block.feed_forward
    products = (block.attention.output, part.expand, part.contract)
    if not _has_plain_norms_and_gelu(block) or not all(is_plain_product(module, rows) for module in products):
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


def int8_post_attention(block: Block, rows: Tensor) -> int8.PostAttention | None:
    """Return the post-attention part as the int8 kernels take it, or None if they cannot run the block."""
    part = block.feed_forward
    products = (block.attention.output, part.expand, part.contract)
    if not all(is_int8_product(module, rows) for module in products) or not _has_plain_norms_and_gelu(block):
        return None
    if block.attention.output.in_features != block.attention.output.out_features:
        return None  # pruned heads
    norms = [
        vector
        for norm in (block.attention_norm, block.feed_forward_norm)
        for vector in norm._parameters.values()
        if vector is not None and vector.dtype == torch.float32 and vector.is_contiguous()
    ]
    return int8.PostAttention(products, norms, epsilons(block)) if len(norms) == 4 else None  # type: ignore[arg-type]


def is_int8_product(module: Module, rows: Tensor) -> bool:
    """Return whether a layer has int8 weights that our kernels take for these rows; raise for rows it must not take."""
    if not (isinstance(module, Int8Linear) and is_bare(module, Int8Linear)):
        return False
    module.check(rows)
    return module.is_blocked and int8.available()


def _has_plain_norms_and_gelu(block: Block) -> bool:
    """Return whether a block is post-norm, with plain layer norms, the exact GELU and no gate."""
    part, norms = block.feed_forward, (block.attention_norm, block.feed_forward_norm)
    is_plain = not (block.pre_norm or part.gated or part.gate is not None)
    return is_plain and is_gelu(part.activation) and all(is_bare(norm, LayerNorm) for norm in norms)


def epsilons(block: Block) -> tuple[float, float]:
    """Return the epsilons of the two norms, which are plain LayerNorms."""
    return block.attention_norm.eps, block.feed_forward_norm.eps  # type: ignore[return-value]


def should_absorb(block: Block, plan: Plan, layer: LayerPlan, cached: Projected | None = None) -> bool:
    """Return whether the absorbed form can run here and is the cheaper one for this batch."""
    if not can_absorb(block):
        return False
    projected = plan.tokens if cached is None else cached.changed
    return absorbing_saves_in(block, projected, layer.active, layer.pairs) > 0


def can_absorb(block: Block) -> bool:
    """Return whether the absorbed form can run here."""
    part = block.attention.projections
    if torch.is_grad_enabled() or block.attention.window is not None or not isinstance(part, SeparateProjections):
        return False
    if block.attention.shared_heads != block.attention.heads:
        return False  # a projection that several heads share would be folded into the queries of each
    return (is_bare_linear(part.key) and is_bare_linear(part.value)) or can_absorb_int8(block)


def absorbing_saves_in(block: Block, projected: int, active: int, pairs: int) -> float:
    """Return how much cheaper the absorbed form of a layer is that can run in it, see `absorbing_saves`."""
    key = block.attention.projections.modules[1]
    width: int = key.in_features  # type: ignore[assignment]
    inner: int = key.out_features  # type: ignore[assignment]
    sizes = AttentionSizes(width, block.attention.heads, inner, inner)
    product_cost = INT8_PRODUCT if isinstance(key, Int8Linear) else 1.0
    return float(absorbing_saves(projected, active, pairs, sizes, product_cost))


def can_absorb_int8(block: Block) -> bool:
    """Return whether our kernels run the absorbed form of a layer whose keys and values have int8 weights."""
    part, heads = block.attention.projections, block.attention.heads
    if not isinstance(part, SeparateProjections) or not int8.available():
        return False
    sizes: set[Any] = {size for module in part.modules for size in (module.in_features, module.out_features)}
    types = {type(part.key), type(part.value)}
    if len(sizes) > 1 or types not in ({Int8Linear}, {Linear}):
        return False
    width: int = sizes.pop()
    return width % heads == 0 and int8.is_blocked(width // heads, width)


def _relative_scores(part: AttentionPart, positions: PositionTerms, dropout: Dropout) -> RelativeScores | None:
    """Project the distances that occur in the batch, in layers that take them."""
    if part.distances is None or positions.relative is None:
        return None
    return part.distances.project(positions.relative, dropout.distances)


def _project(
    part: AttentionPart, source: Tensor, active: int, positions: PositionTerms, cached: Projected | None
) -> tuple[Tensor, Projected]:
    """Return the queries of the active rows, and the keys and values of all tokens.

    Rows that have not changed take theirs from `cached`. source: (tokens, width).
    """
    if cached is None:
        query, key, value = part.projections.all_three(source, active)
        query, key = positions.rotate(query, part.heads), positions.rotate(key, part.shared_heads)
        return query, Projected(key, value, changed=active)
    query = positions.rotate(part.projections.queries(source[:active]), part.heads)
    if cached.changed == 0:
        return query, Projected(cached.key, cached.value, changed=active)
    fresh_key, fresh_value = part.projections.keys_and_values(source[: cached.changed])
    fresh_key = positions.rotate(fresh_key, part.shared_heads)
    key = torch.cat([fresh_key, cached.key[cached.changed :]])
    value = torch.cat([fresh_value, cached.value[cached.changed :]])
    return query, Projected(key, value, changed=active)
