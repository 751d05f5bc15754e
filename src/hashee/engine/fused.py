"""All remaining layers of a small batch in one kernel call, since Python takes longer than the kernels between them."""

from collections.abc import Sequence
from typing import Any

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
from hashee.engine.parts import AttentionPart, SeparateProjections
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
    weights = int8_layer_weights(block, hidden)
    if weights is None:
        return None
    layer = plan.layer(block.layer)
    return int8.Layer(weights, layer.active, layer.queries, should_absorb(block, plan, layer))


def int8_layer_weights(block: Block, hidden: Tensor) -> int8.LayerWeights | None:
    """Return a layer's weights as the int8 kernels take them, or None if they cannot run it.

    Projections may be in float32, as those of the first layer are, which are looked up where that pays.
    """
    part = block.attention
    if block.training or part.window is not None or not can_absorb_int8(block):
        return None
    projections: Any = part.projections.modules
    if not all(is_int8_product(module, hidden) for module in projections):
        projections = projection_weights(part, hidden)
    post_attention = int8_post_attention(block, hidden)
    return None if projections is None or post_attention is None else int8.LayerWeights(projections, post_attention)


def _layer(block: Block, hidden: Tensor, plan: Plan) -> native.Layer | None:
    """Return a layer as the kernel takes it, or None if the kernel cannot run it."""
    weights = layer_weights(block, hidden)
    if weights is None:
        return None
    layer = plan.layer(block.layer)
    absorbed = should_absorb(block, plan, layer)
    size = hidden.shape[1] // block.attention.heads
    if size % 4 if absorbed else size % 8:
        return None
    return native.Layer(weights, epsilons(block), layer.active, layer.queries, absorbed)


def layer_weights(block: Block, hidden: Tensor) -> list[Tensor | None] | None:
    """Return a layer's weights in the order of `native.Layer`, or None if the kernels cannot run it in float32."""
    if block.training or block.attention.window is not None:
        return None
    projections, post_attention = projection_weights(block.attention, hidden), post_attention_weights(block, hidden)
    if projections is None or post_attention is None:
        return None
    output, width = post_attention[0], hidden.shape[1]
    return [*projections, *post_attention] if output.shape == (width, width) and output.is_contiguous() else None


def projection_weights(part: AttentionPart, hidden: Tensor) -> list[Tensor | None] | None:
    """Return the first five of these, or None if the kernels cannot project in float32."""
    if not isinstance(part.projections, SeparateProjections):
        return None
    modules, width = part.projections.modules, hidden.shape[1]
    if not all(is_plain_product(module, hidden) for module in modules):
        return None
    query, key, value = (module._parameters for module in modules)
    if any(
        w is None or w.shape != (width, width) or not w.is_contiguous()
        for w in (each["weight"] for each in (query, key, value))
    ):
        return None
    return [query["weight"], query["bias"], key["weight"], value["weight"], value["bias"]]
