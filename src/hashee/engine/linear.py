"""Linear layers on packed rows: few rows in kernels made for them."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hashee.engine import native

MOST_ROWS = 192
"""Above this many rows torch's own product, which first lays out the weight anew, is as fast as our kernel."""


def is_bare(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Say whether a module is of exactly this kind: adapters, quantized layers and hooks do more than it does."""
    return type(module) is kind and not module._forward_hooks and not module._forward_pre_hooks


def is_bare_linear(module: nn.Module) -> bool:
    """Say whether a module only multiplies by its weight and adds its bias."""
    return is_bare(module, nn.Linear)


def project(module: nn.Module, rows: Tensor) -> Tensor:
    """Apply a linear layer to (rows, width) states."""
    if 0 < len(rows) <= MOST_ROWS and is_plain_product(module, rows):
        assert isinstance(module, nn.Linear)
        if native.takes((rows,), (module.weight,)):
            return native.linear(rows, module.weight, module.bias)
    projected: Tensor = module(rows)
    return projected


def multiply(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Do what `project` does with some rows of a bare linear layer's weight."""
    plain = not torch.is_grad_enabled() and rows.dtype == weight.dtype == torch.float32
    on_processor = rows.device.type == "cpu" and not torch.is_autocast_enabled("cpu")
    if plain and on_processor and 0 < len(rows) <= MOST_ROWS and native.takes((rows,), (weight,)):
        return native.linear(rows, weight, bias)
    return F.linear(rows, weight, bias)


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
