"""Layers on few rows in one call: between the calls of kernels Python takes longer than the kernels do."""

from collections.abc import Sequence

import torch
from torch import Tensor

from hashee.engine import native
from hashee.engine.block import Block, absorbs, epsilons, rest_weights
from hashee.engine.linear import MOST_ROWS, is_plain_product
from hashee.engine.parts import SeparateProjections
from hashee.engine.plan import Plan


def run_layers_(blocks: Sequence[Block], hidden: Tensor, plan: Plan) -> bool:
    """Run the layers that are left, in place, if a kernel can run them all; say whether it could.

    hidden: (tokens, width). The layers have no position bias and keep nothing for layers that share their weights.
    """
    left = [block for block in blocks if plan.active[block.layer]]
    if not left or plan.active[left[0].layer] > MOST_ROWS or torch.is_grad_enabled():
        return False
    if not (hidden.is_contiguous() and native.takes((hidden,), ())):
        return False
    layers = []
    for block in left:
        layer = _layer(block, hidden, plan)
        if layer is None:
            return False
        layers.append(layer)
    parts = [block.attention for block in left]
    shapes = {(part.heads, part.scale, layer.inner) for part, layer in zip(parts, layers, strict=True)}
    if len(shapes) > 1:
        return False
    native.layers_(hidden, layers, (plan.seats, plan.alive[0]), heads=parts[0].heads, scale=parts[0].scale)
    return True


def _layer(block: Block, hidden: Tensor, plan: Plan) -> native.Layer | None:
    """Return what the kernel is told of a layer, or None if it cannot run it."""
    part = block.attention
    if block.training or part.window is not None or not isinstance(part.projections, SeparateProjections):
        return None
    projections = part.projections.modules
    if not all(is_plain_product(module, hidden) for module in projections):
        return None
    layer = plan.layer(block.layer)
    absorbed = absorbs(block, plan, layer)
    width = hidden.shape[1]
    size = width // part.heads
    if size % 4 if absorbed else size % 8 or plan.tokens > MOST_ROWS:
        return None
    query, key, value = (module._parameters for module in projections)
    rest = rest_weights(block, hidden)
    if rest is None:
        return None
    weights = (query["weight"], query["bias"], key["weight"], value["weight"], value["bias"], *rest)
    matrices = [weights[n] for n in (0, 2, 3, 5)]
    if any(matrix is None or matrix.shape != (width, width) or not matrix.is_contiguous() for matrix in matrices):
        return None
    return native.Layer(weights, epsilons(block), layer.active, layer.asking, absorbed)
