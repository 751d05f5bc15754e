"""The activation of a feed-forward, without a primitive that torch compiles and caches for every number of rows."""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.activations import GELUActivation

from hashee.engine import native
from hashee.engine.linear import is_bare

SMALLEST_PIECE = 16
"""Without kernels, rows pass torch's GELU in pieces of powers of two; so few remaining rows are one piece."""


def activate(activation: Callable[[Tensor], Tensor], expand: nn.Module, inner: Tensor) -> Tensor:
    """Apply an activation to the output of `expand`, in place if nothing else refers to it. inner: (rows, width)"""
    has_hooks = any(module._forward_hooks for module in expand.modules())
    if torch.is_grad_enabled() or inner.device.type != "cpu" or has_hooks or not is_gelu(activation):
        return activation(inner)
    if inner.is_contiguous() and native.supports((inner,), ()):
        return native.gelu_(inner)
    # Torch compiles a GELU for every new shape and caches the last thousand. They are small, but they fragment the
    # memory between the buffers of the batches, which can then neither be merged nor returned to the system.
    for piece in _pieces(inner):
        torch.ops.aten.gelu_(piece)
    return inner


def _pieces(rows: Tensor) -> Iterator[Tensor]:
    """Split rows into pieces of few different sizes."""
    start = 0
    while remaining := len(rows) - start:
        size = remaining if remaining <= SMALLEST_PIECE else 1 << (remaining.bit_length() - 1)
        yield rows[start : start + size]
        start += size


def is_gelu(activation: Callable[[Tensor], Tensor]) -> bool:
    """Return whether an activation is the exact GELU without hooks."""
    return isinstance(activation, GELUActivation) and is_bare(activation, GELUActivation) and activation.act is F.gelu
