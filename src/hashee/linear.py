"""Linear layers on few rows: weights laid out once for the processor instead of at every call."""

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

MOST_ROWS = 64
"""Above this many rows the re-layout of the weight is lost in the product itself."""


@dataclass(frozen=True)
class _Packed:
    """A weight in oneDNN's own layout, and which state of which tensor it was made from."""

    weight: Tensor
    source: tuple[int, int]


_PACKED: "WeakKeyDictionary[nn.Module, _Packed]" = WeakKeyDictionary()


def is_bare_linear(module: nn.Module) -> bool:
    """Say whether a module is a bare Linear: adapters, quantized layers and hooks do more than multiply by a weight."""
    return type(module) is nn.Linear and not module._forward_hooks and not module._forward_pre_hooks


def project(module: nn.Module, rows: Tensor) -> Tensor:
    """Apply a linear layer to (rows, width) states, from a packed copy of its weight where that is faster."""
    if 0 < len(rows) <= MOST_ROWS and _can_pack(module, rows):
        assert isinstance(module, nn.Linear)
        projected: Tensor = torch.ops.mkldnn._linear_pointwise(
            rows, _packed_weight(module), module.bias, "none", [], ""
        )
    else:
        projected = module(rows)
    return projected


def _can_pack(module: nn.Module, rows: Tensor) -> bool:
    return (
        not torch.is_grad_enabled()
        and rows.device.type == "cpu"
        and rows.dtype == torch.float32
        and torch.backends.mkldnn.is_available()
        and is_bare_linear(module)
        and module.weight.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")
    )


def _packed_weight(module: nn.Linear) -> Tensor:
    weight = module.weight
    # The version changes with every optimizer step and every load into the same tensor.
    source = (weight.data_ptr(), 0 if weight.is_inference() else weight._version)
    known = _PACKED.get(module)
    if known is None or known.source != source:
        known = _Packed(torch.ops.mkldnn._reorder_linear_weight(weight.detach(), MOST_ROWS), source)
        _PACKED[module] = known
    return known.weight
