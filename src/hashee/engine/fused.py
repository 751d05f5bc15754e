"""All remaining layers of a small batch in one kernel call, since Python takes longer than the kernels between them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from hashee.engine import native
from hashee.engine.block import (
    Block,
    can_absorb_int8,
    epsilons,
    int8_post_attention,
    is_int8_product,
    post_attention_weights,
    should_absorb,
)
from hashee.engine.int8 import Int8Linear
from hashee.engine.linear import is_plain_product
from hashee.engine.native import int8
from hashee.engine.parts import SeparateProjections
from hashee.engine.plan import Plan

MAX_ROWS = 2048
"""Rows of a call at most, whose memory grows with them: one layer after the other needs less at a time."""


def run_layers_(blocks: Sequence[Block], hidden: Tensor, plan: Plan) -> bool:
    """Run the given layers in place if one kernel call can run them all; return whether it could.

    hidden: (tokens, width). The layers must have no position terms and share no weights.
    """
    remaining = [block for block in blocks if plan.active[block.layer]]
    if not remaining or torch.is_grad_enabled():
        return False
    if not (hidden.is_contiguous() and native.supports((hidden,), ())):
        return False
    first = remaining[0]
    is_int8 = isinstance(first.attention.projections.modules[0], Int8Linear)
    if plan.active[first.layer] > MAX_ROWS:
        return False
    layers = []
    for block in remaining:
        layer = (_int8_layer if is_int8 else _layer)(block, hidden, plan)
        if layer is None:
            return False
        layers.append(layer)
    shapes = {(b.attention.heads, b.attention.scale, layer.inner) for b, layer in zip(remaining, layers, strict=True)}
    if len(shapes) > 1:
        return False
    heads, scale = first.attention.heads, first.attention.scale
    sequences = (plan.slots, plan.active_by_sequence[0])
    if is_int8:
        int8.layers_(hidden, layers, sequences, int8.AttentionSettings(heads, scale))  # type: ignore[arg-type]
    else:
        native.layers_(hidden, layers, sequences, heads=heads, scale=scale)  # type: ignore[arg-type]
    return True


def _int8_layer(block: Block, hidden: Tensor, plan: Plan) -> int8.Layer | None:
    """Return a layer with int8 weights as the kernel takes it, or None if the kernel cannot run it."""
    part = block.attention
    if block.training or part.window is not None or not can_absorb_int8(block):
        return None
    projections = part.projections.modules
    if not all(is_int8_product(module, hidden) for module in projections):
        return None
    post_attention = int8_post_attention(block, hidden)
    if post_attention is None:
        return None
    layer = plan.layer(block.layer)
    absorbed = should_absorb(block, plan, layer)
    return int8.Layer(projections, post_attention, layer.active, layer.queries, absorbed)  # type: ignore[arg-type]


def _layer(block: Block, hidden: Tensor, plan: Plan) -> native.Layer | None:
    """Return a layer as the kernel takes it, or None if the kernel cannot run it."""
    part = block.attention
    if block.training or part.window is not None or not isinstance(part.projections, SeparateProjections):
        return None
    projections = part.projections.modules
    if not all(is_plain_product(module, hidden) for module in projections):
        return None
    layer = plan.layer(block.layer)
    absorbed = should_absorb(block, plan, layer)
    width = hidden.shape[1]
    size = width // part.heads
    if size % 4 if absorbed else size % 8:
        return None
    query, key, value = (module._parameters for module in projections)
    post_attention = post_attention_weights(block, hidden)
    if post_attention is None:
        return None
    weights = (query["weight"], query["bias"], key["weight"], value["weight"], value["bias"], *post_attention)
    matrices = [weights[n] for n in (0, 2, 3, 5)]
    if any(matrix is None or matrix.shape != (width, width) or not matrix.is_contiguous() for matrix in matrices):
        return None
    return native.Layer(weights, epsilons(block), layer.active, layer.queries, absorbed)
