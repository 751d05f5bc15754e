"""Attention of packed queries over packed keys: every form gives the same answer, at another price."""

import torch.nn.functional as F
from torch import Tensor

from hashee.plan import LayerPlan, Plan


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    plan: Plan,
    layer: LayerPlan,
    *,
    heads: int,
    scale: float,
    dropout: float = 0.0,
    bias: Tensor | None = None,
) -> Tensor:
    """Let each active token read every token of its own sequence.

    query: (active, width); key, value: (tokens, width); bias: (sequences, heads, longest, longest) added to the
    scores, in seat order. Returns (active, width).
    """
    # Frozen tokens keep answering as keys, so only queries shrink.
    context = F.scaled_dot_product_attention(
        _seat(query, layer.query_seats, heads),
        _seat(key, plan.seats, heads),
        _seat(value, plan.seats, heads),
        attn_mask=_mask(plan, layer, bias, query),
        dropout_p=dropout,
        scale=scale,
    )
    return context.transpose(1, 2).flatten(2).flatten(0, 1).index_select(0, layer.unseat)


def _seat(rows: Tensor, seats: Tensor, heads: int) -> Tensor:
    """Lay packed rows out by sequence: (rows, width) -> (sequences, heads, seats, head width)."""
    seated = rows.index_select(0, seats.flatten())
    return seated.view(*seats.shape, heads, -1).transpose(1, 2)


def _mask(plan: Plan, layer: LayerPlan, bias: Tensor | None, query: Tensor) -> Tensor | None:
    """Combine empty seats and the position bias into what scaled_dot_product_attention adds to the scores."""
    hidden = None if plan.occupied is None else plan.occupied[:, None, None, :]
    if bias is None:
        return hidden
    bias = bias[:, :, : layer.width].to(query.dtype)
    return bias if hidden is None else bias.masked_fill(~hidden, float("-inf"))
