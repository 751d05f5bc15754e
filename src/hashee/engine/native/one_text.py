"""A text on its own, from ids to states in one call."""

import ctypes

import torch
from torch import Tensor

from hashee.engine import native

_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_int64


class TextEncoder(ctypes.Structure):
    """What a call takes of an encoder; the fields are those of `text_encoder` in one_text.h."""

    _fields_ = [
        *(
            (name, _POINTER)
            for name in ("words", "positions", "types", "gain", "shift", "weights", "epsilons", "savings")
        ),
        *((name, _SIZE) for name in ("word_rows", "position_rows", "type_rows")),
        *((name, _SIZE) for name in ("layers", "width", "inner", "heads", "is_int8")),
        ("epsilon", ctypes.c_float),
        ("scale", ctypes.c_float),
    ]


class _TextTokens(ctypes.Structure):
    _fields_ = [
        *((name, _POINTER) for name in ("ids", "mask", "types", "positions")),
        *((name, _SIZE) for name in ("length", "first_only")),
    ]


def run_text(
    encoder: TextEncoder,
    tokens: tuple[Tensor, Tensor | None, Tensor | None, Tensor | None],
    exit_layers: Tensor,
    states: Tensor,
    first_only: bool,
) -> bool:
    """Run a text, and return whether the kernels could: with ids that there are, a first token that is real, and so on.

    tokens: ids, mask, token types and positions, (1, length) each; exit_layers: (vocabulary,); states: (1, length,
    width), which is written to; first_only: only the first token is read, and the states of the others become NaN.
    """
    compiled = native.library()
    assert compiled is not None
    addresses = [None if tensor is None else tensor.data_ptr() for tensor in tokens]
    text = _TextTokens(*addresses, states.shape[1], first_only)
    found: int = compiled.hashee_text(
        *(ctypes.byref(encoder), ctypes.byref(text), exit_layers.data_ptr(), states.data_ptr(), torch.get_num_threads())
    )
    return found >= 0
