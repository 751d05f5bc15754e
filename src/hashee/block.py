"""The maths of one encoder layer on packed rows; the only place where it is written."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Module

from hashee.attention import attend
from hashee.plan import Plan


@dataclass(frozen=True)
class Dropout:
    """Dropout probabilities of a layer, by where they apply."""

    attention_output: float = 0.0
    scores: float = 0.0
    activation: float = 0.0
    feed_forward: float = 0.0


@dataclass(frozen=True)
class Block:
    """References to the sub-modules of one Hugging Face layer; the parameters stay where they were."""

    layer: int
    """Exit layer this block belongs to, from 1; several blocks may share one (ALBERT's inner groups)."""
    query: Module
    key: Module
    value: Module
    output: Module
    attention_norm: Module
    expand: Module
    activation: Callable[[Tensor], Tensor]
    contract: Module
    feed_forward_norm: Module
    heads: int
    scale: float
    dropout: Dropout
    training: bool
    """Whether dropout is on."""
    pre_norm: bool = False
    """Norms before the sub-layers (mBART, pre-norm RoBERTa) instead of after the residual sum (BERT)."""
    clamp_half: bool = False
    """Keep float16 states finite, as BART and mBART do."""


def apply_block(block: Block, hidden: Tensor, plan: Plan, bias: Tensor | None = None) -> Tensor:
    """Run one layer and return the states of all rows, of which only the active ones have changed.

    hidden: (tokens, width) packed states; bias: position bias as `attend` takes it. Returns (tokens, width).
    """
    layer = plan.layer(block.layer)
    dropout = block.dropout if block.training else Dropout()
    active = hidden[: layer.active]

    # Keys need the norm too in pre-norm models, so it runs over the frozen rows as well.
    source = block.attention_norm(hidden) if block.pre_norm else hidden
    context = attend(
        block.query(source[: layer.active]),
        block.key(source),
        block.value(source),
        plan,
        layer,
        heads=block.heads,
        scale=block.scale,
        dropout=dropout.scores,
        bias=bias,
    )
    attended = _drop(block.output(context), dropout.attention_output) + active
    if not block.pre_norm:
        attended = block.attention_norm(attended)

    source = block.feed_forward_norm(attended) if block.pre_norm else attended
    inner = _drop(block.activation(block.expand(source)), dropout.activation)
    updated = _drop(block.contract(inner), dropout.feed_forward) + attended
    if not block.pre_norm:
        updated = block.feed_forward_norm(updated)

    if block.clamp_half and updated.dtype == torch.float16:
        limit = torch.finfo(torch.float16).max - 1000
        updated = updated.clamp(-limit, limit)
    return updated if layer.active == len(hidden) else torch.cat([updated, hidden[layer.active :]])


def _drop(states: Tensor, probability: float) -> Tensor:
    return F.dropout(states, probability) if probability > 0 else states
