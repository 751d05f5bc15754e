"""Exit layers as users give them, checked and put into one form."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hashee.errors import TableError


def as_tensor(exit_layers: Tensor | NDArray[Any] | Iterable[int]) -> Tensor:
    """Return the layers as a tensor on the CPU, or refuse what cannot be one."""
    # The device is named because a model may be under construction on the meta device.
    if not isinstance(exit_layers, Tensor | np.ndarray):
        exit_layers = list(exit_layers)
    try:
        return torch.as_tensor(exit_layers, device="cpu")
    except (TypeError, ValueError, RuntimeError) as error:
        raise TableError(f"exit layers must be whole numbers, one per token ({error})") from None


def checked_layers(exit_layers: Tensor, num_layers: int) -> Tensor:
    """Return an int64 copy of layers from 0 to `num_layers`, one per token, or refuse them. (vocab,)"""
    layers = as_tensor(exit_layers).detach()
    if layers.ndim != 1 or layers.numel() == 0:
        raise TableError(f"exit layers have shape {tuple(layers.shape)}; give one per token, (vocab,)")
    if layers.is_floating_point() or layers.is_complex() or layers.dtype == torch.bool:
        raise TableError(f"exit layers are {layers.dtype}; give whole numbers, e.g. tensor.to(torch.int64)")
    # A copy, so that the table stays as it is whatever becomes of the caller's tensor.
    layers = layers.to(torch.int64, copy=True).contiguous()
    wrong = (layers < 0) | (layers > num_layers)
    if bool(wrong.any()):
        token_id = int(wrong.nonzero()[0])
        raise TableError(
            f"token id {token_id} exits at layer {int(layers[token_id])}; use layers from 0 to {num_layers}, "
            f"or a larger num_layers"
        )
    return layers
