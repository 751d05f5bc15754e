"""All remaining layers of a small batch in one kernel call, since Python takes longer than the kernels between them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from hashee.engine import native
from hashee.engine.block import Block, epsilons, post_attention_weights, should_absorb
from hashee.engine.linear import MAX_ROWS, is_plain_product
from hashee.engine.parts import SeparateProjections
from hashee.engine.plan import Plan


def run_layers_(blocks: Sequence[Block], hidden: Tensor, plan: Plan) -> bool:
    """Run the given layers in place if one kernel call can run them all; return whether it could.

    hidden: (tokens, width). The layers must have no position terms and share no weights.
    """
    remaining = [block for block in blocks if plan.active[block.layer]]
    if not remaining or plan.active[remaining[0].layer] > MAX_ROWS or torch.is_grad_enabled():
        return False
    if not (hidden.is_contiguous() and native.supports((hidden,), ())):
        return False
    layers = []
    for block in remaining:
        layer = _layer(block, hidden, plan)
        if layer is None:
            return False
        layers.append(layer)
    parts = [block.attention for block in remaining]
    shapes = {(part.heads, part.scale, layer.inner) for part, layer in zip(parts, layers, strict=True)}
    if len(shapes) > 1:
        return False
    native.layers_(hidden, layers, (plan.slots, plan.active_by_sequence[0]), heads=parts[0].heads, scale=parts[0].scale)
    return True


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
    if size % 4 if absorbed else size % 8 or plan.tokens > MAX_ROWS:
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
