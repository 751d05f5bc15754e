"""The activation between the two products of a feed-forward, without anything left behind for every number of rows."""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.activations import GELUActivation

from hashee.engine import native
from hashee.engine.linear import is_bare

SMALLEST_PIECE = 16
"""Without kernels, rows pass torch's GELU in powers of two, and what is left when so few are left."""


def activate(activation: Callable[[Tensor], Tensor], expand: nn.Module, inner: Tensor) -> Tensor:
    """Activate what a layer has just expanded its rows to, in place if nobody else can hold it. inner: (rows, width)"""
    is_watched = any(module._forward_hooks for module in expand.modules())
    if torch.is_grad_enabled() or inner.device.type != "cpu" or is_watched or not is_gelu(activation):
        return activation(inner)
    if inner.is_contiguous() and native.takes((inner,), ()):
        return native.gelu_(inner)
    # Torch compiles a GELU for every shape that it meets and keeps the last thousand. They are small, but they lie
    # between the buffers of the batches, whose memory can then neither be joined again nor go back to the system.
    for piece in _pieces(inner):
        torch.ops.aten.gelu_(piece)
    return inner


def _pieces(rows: Tensor) -> Iterator[Tensor]:
    """Cut rows into pieces of few different sizes."""
    start = 0
    while left := len(rows) - start:
        size = left if left <= SMALLEST_PIECE else 1 << (left.bit_length() - 1)
        yield rows[start : start + size]
        start += size


def is_gelu(activation: Callable[[Tensor], Tensor]) -> bool:
    """Say whether an activation is the exact GELU and nothing else."""
    return isinstance(activation, GELUActivation) and is_bare(activation, GELUActivation) and activation.act is F.gelu
