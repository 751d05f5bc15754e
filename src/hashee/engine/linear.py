"""Linear layers on packed rows; in float32 on a CPU they run in our own kernel."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hashee.engine import native


def is_bare(module: nn.Module, expected: type[nn.Module]) -> bool:
    """Return whether a module is of exactly this class and has no hooks; adapters and quantized layers are not."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return type(module) is expected and not any(hooks)


def is_bare_linear(module: nn.Module) -> bool:
    """Return whether a module only multiplies by its weight and adds its bias."""
    return is_bare(module, nn.Linear)


def project(module: nn.Module, rows: Tensor) -> Tensor:
    """Apply a linear layer to (rows, width) states."""
    if len(rows) and is_plain_product(module, rows):
        assert isinstance(module, nn.Linear)
        if native.supports((rows,), (module.weight,)):
            return native.linear(rows, module.weight, module.bias)
    projected: Tensor = module(rows)
    return projected


def multiply(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Do what `project` does with a weight and bias, such as a part of a linear layer's."""
    plain = not torch.is_grad_enabled() and rows.dtype == weight.dtype == torch.float32
    on_cpu = rows.device.type == "cpu" and not torch.is_autocast_enabled("cpu")
    if plain and on_cpu and len(rows) and native.supports((rows,), (weight,)):
        return native.linear(rows, weight, bias)
    return F.linear(rows, weight, bias)


def is_plain_product(module: nn.Module, rows: Tensor) -> bool:
    """Return whether a linear layer is, for these rows, just a product in float32 on a CPU."""
    return (
        not torch.is_grad_enabled()
        and rows.device.type == "cpu"
        and rows.dtype == torch.float32
        and is_bare_linear(module)
        and all(weight is None or weight.dtype == torch.float32 for weight in module._parameters.values())
        and not torch.is_autocast_enabled("cpu")
    )
