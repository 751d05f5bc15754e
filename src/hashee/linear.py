"""Linear layers on packed rows: few rows in kernels made for them."""

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from hashee import native

MOST_ROWS = 192
"""Above this many rows torch's own product, which first lays out the weight anew, is as fast as our kernel."""
MOST_ROWS_OF_PACKED = 96
"""The same for oneDNN's product by a weight that is laid out already, which is used where there is no kernel."""


@dataclass(frozen=True)
class _Packed:
    """A weight in oneDNN's own layout, and which state of which tensor it was made from."""

    weight: Tensor
    source: tuple[int, int, int]


_PACKED: "WeakKeyDictionary[nn.Module, _Packed]" = WeakKeyDictionary()


def is_bare(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Say whether a module is of exactly this kind: adapters, quantized layers and hooks do more than it does."""
    return type(module) is kind and not module._forward_hooks and not module._forward_pre_hooks


def is_bare_linear(module: nn.Module) -> bool:
    """Say whether a module only multiplies by its weight and adds its bias."""
    return is_bare(module, nn.Linear)


_steps = 0
"""Steps that any optimizer of this process has taken."""


def _count_step(optimizer: Any, arguments: Any, options: Any) -> None:
    global _steps  # noqa: PLW0603  # the hook is of the whole process too
    _steps += 1


# Fused optimizers write to weights without counting it as a write.
register_optimizer_step_post_hook(_count_step)


def state_of(tensor: Tensor) -> tuple[int, int, int]:
    """Return what changes whenever a tensor does: its place, the writes to it, and the steps of optimizers."""
    # Loading into the same tensor writes to it; inference tensors keep no count.
    return tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version, _steps


def project(module: nn.Module, rows: Tensor) -> Tensor:
    """Apply a linear layer to (rows, width) states."""
    if not (0 < len(rows) <= MOST_ROWS and is_plain_product(module, rows)):
        projected: Tensor = module(rows)
        return projected
    assert isinstance(module, nn.Linear)
    if native.takes((rows,), (module.weight,)):
        return native.linear(rows, module.weight, module.bias)
    if len(rows) <= MOST_ROWS_OF_PACKED and torch.backends.mkldnn.is_available():
        projected = torch.ops.mkldnn._linear_pointwise(rows, _packed_weight(module), module.bias, "none", [], "")
    else:
        projected = module(rows)
    return projected


def is_plain_product(module: nn.Module, rows: Tensor) -> bool:
    """Say whether a linear layer is, for these rows, a product in single precision on a processor and nothing else."""
    return (
        not torch.is_grad_enabled()
        and rows.device.type == "cpu"
        and rows.dtype == torch.float32
        and is_bare_linear(module)
        and all(weight is None or weight.dtype == torch.float32 for weight in module._parameters.values())
        and not torch.is_autocast_enabled("cpu")
    )


def _packed_weight(module: nn.Linear) -> Tensor:
    weight = module.weight
    source = state_of(weight)
    known = _PACKED.get(module)
    if known is None or known.source != source:
        known = _Packed(torch.ops.mkldnn._reorder_linear_weight(weight.detach(), MOST_ROWS_OF_PACKED), source)
        _PACKED[module] = known
    return known.weight
