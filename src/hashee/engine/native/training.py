"""What a training step computes between its products, in kernels: GELU, dropout with residual and norm, attention.

Products are in float32 or bfloat16, and so is what the kernels read and write of them; everything else is float32.
"""

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from hashee.engine import native

PARTS = 16
"""As in training.h: sums over rows come in so many parts, whatever the number of threads."""
DROP_BITS = 24
"""Bits of the random numbers that decide what is dropped."""


@dataclass(frozen=True)
class Drop:
    """A dropout whose mask is a function of a seed."""

    probability: float
    seed: int

    @property
    def fields(self) -> "_Dropout":
        """The numbers that kernels take."""
        keep = 1.0 / (1.0 - self.probability) if self.probability < 1.0 else 0.0
        return _Dropout(self.seed, round(self.probability * (1 << DROP_BITS)), keep)


@dataclass(frozen=True)
class Sequences:
    """The packed rows of a batch's sequences."""

    slots: Tensor
    """(sequences, longest) packed row of each token, active ones first."""
    lengths: Tensor
    queries: Tensor
    """(sequences,) numbers of tokens and of queries."""


@dataclass(frozen=True)
class Attention:
    """The attention of a layer in training; kernels take heads whose width is a multiple of 8."""

    sequences: Sequences
    heads: int
    scale: float
    drop: Drop

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Let queries attend to the tokens of their own sequences.

        query: (active, width); key, value: (tokens, width). Returns (active, width).
        """
        context = torch.empty_like(query)
        _library().hashee_train_attend(
            *(ctypes.byref(self._fields(query, key, value)), context.data_ptr()),
            *(_is_half(query), torch.get_num_threads()),
        )
        return context

    def backward(self, query: Tensor, key: Tensor, value: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of queries, keys and values. grad: (active, width), of what `forward` returned."""
        found = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
        _library().hashee_train_attend_back(
            *(ctypes.byref(self._fields(query, key, value)), grad.data_ptr(), *(each.data_ptr() for each in found)),
            *(_is_half(query), torch.get_num_threads()),
        )
        return found

    def _fields(self, query: Tensor, key: Tensor, value: Tensor) -> "_Attention":
        at, own = self.sequences, (query, key, value)
        assert all(each.is_contiguous() and each.dtype == query.dtype for each in own)
        return _Attention(
            *(each.data_ptr() for each in own),
            *(at.slots.data_ptr(), at.slots.stride(0), at.lengths.data_ptr(), at.queries.data_ptr(), len(at.slots)),
            *(self.heads, query.shape[1] // self.heads, self.scale, self.drop.fields),
        )


@dataclass(frozen=True)
class Ended:
    """What the end of a sub-layer gives, and what its backward pass needs."""

    states: Tensor
    """(rows, width) float32"""
    copy: Tensor
    """The same as products take them."""
    normed: Tensor
    """(rows, width) before gain and shift."""
    scale: Tensor
    """(rows,)"""


@dataclass(frozen=True)
class SublayerEnd:
    """Layer norm of dropout(product + bias) + residual."""

    bias: Tensor
    gain: Tensor
    shift: Tensor
    epsilon: float
    drop: Drop

    def forward(self, product: Tensor, residual: Tensor) -> Ended:
        """Run it. product: (rows, width); residual: (rows, width) float32, rows may be apart."""
        rows, width = product.shape
        states = residual.new_empty(rows, width)
        ended = Ended(
            states,
            torch.empty_like(product) if _is_half(product) else states,
            normed=torch.empty_like(states),
            scale=states.new_empty(rows),
        )
        _library().hashee_train_end(
            *(product.data_ptr(), ctypes.byref(self._fields(residual)), states.data_ptr(), ended.copy.data_ptr()),
            *(ended.normed.data_ptr(), ended.scale.data_ptr(), rows, width),
            *(_is_half(product), torch.get_num_threads()),
        )
        return ended

    def backward_(
        self, grad: Tensor, normed: Tensor, scale: Tensor, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Turn the gradient of the states into that of the residual, in place.

        Returns the gradients of the product, in its own precision, and of gain, shift and bias.
        """
        (rows, width), product = grad.shape, torch.empty_like(grad, dtype=dtype)
        sums = grad.new_empty(PARTS, 3, width)
        _library().hashee_train_end_back(
            *(grad.data_ptr(), ctypes.byref(self._fields(grad)), normed.data_ptr(), scale.data_ptr()),
            *(product.data_ptr(), sums.data_ptr(), rows, width, _is_half(product), torch.get_num_threads()),
        )
        gain, shift, bias = sums.sum(0)
        return product, gain, shift, bias

    def _fields(self, residual: Tensor) -> "_SublayerEnd":
        return _SublayerEnd(
            *(self.bias.data_ptr(), residual.data_ptr(), residual.stride(0)),
            *(self.gain.data_ptr(), self.shift.data_ptr(), self.epsilon, self.drop.fields),
        )


def gelu(product: Tensor, bias: Tensor) -> Tensor:
    """Return the exact GELU of a product and a bias: (rows, width) -> (rows, width), in the product's precision."""
    activated = torch.empty_like(product)
    _library().hashee_train_gelu(
        *(product.data_ptr(), bias.data_ptr(), activated.data_ptr(), *product.shape),
        *(_is_half(product), torch.get_num_threads()),
    )
    return activated


def gelu_backward_(product: Tensor, bias: Tensor, grad: Tensor) -> Tensor:
    """Turn the gradient of `gelu` into that of the product, in place, and return that of the bias."""
    sums = bias.new_empty(PARTS, len(bias))
    _library().hashee_train_gelu_back(
        *(product.data_ptr(), bias.data_ptr(), grad.data_ptr(), sums.data_ptr(), *product.shape),
        *(_is_half(product), torch.get_num_threads()),
    )
    return sums.sum(0)


class _Dropout(ctypes.Structure):
    _fields_ = [("seed", ctypes.c_int64), ("limit", ctypes.c_int64), ("keep", ctypes.c_float)]


class _SublayerEnd(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("bias", "residual")),
        ("residual_step", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("gain", "shift")),
        ("epsilon", ctypes.c_float),
        ("drop", _Dropout),
    ]


class _Attention(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("query", "key", "value", "slots")),
        ("longest", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("lengths", "queries")),
        *((name, ctypes.c_int64) for name in ("sequences", "heads", "width")),
        ("scale", ctypes.c_float),
        ("drop", _Dropout),
    ]


def _is_half(product: Tensor) -> bool:
    return product.dtype == torch.bfloat16


def _library() -> ctypes.CDLL:
    compiled = native.library()
    assert compiled is not None
    return compiled
