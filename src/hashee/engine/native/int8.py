"""Kernels with int8 weights: rows are rounded as they come, and what lies between products is float32."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from hashee.engine import native

BLOCK = 16
"""Features of a block of weights; widths and numbers of features must be multiples of it."""


class Matrix(Protocol):
    """The weight of a linear layer as kernels take it."""

    in_features: int
    out_features: int

    def fields(self) -> list[int]:
        """Return the addresses of the blocks of weights, of their steps and sums, and of the bias."""

    def column_sums(self, heads: int) -> Tensor:
        """Return the sums of the integers over the rows of each head: (heads, inputs)."""


def is_blocked(features: int, width: int) -> bool:
    """Return whether a weight of this shape is kept in blocks, which kernels take."""
    return features % BLOCK == 0 and width % BLOCK == 0 and width > 0


def to_blocks(weight: Tensor) -> Tensor:
    """Lay a weight out as kernels take it: (features, width) -> (features / 16, width / 4, 16, 4)."""
    features, width = weight.shape
    return weight.view(features // BLOCK, BLOCK, width // 4, 4).transpose(1, 2).contiguous()


def from_blocks(blocks: Tensor) -> Tensor:
    """Undo `to_blocks`."""
    return blocks.transpose(1, 2).reshape(blocks.shape[0] * BLOCK, -1)


def available() -> bool:
    """Return whether there are kernels."""
    return native.library() is not None


def steps() -> int:
    """Return into how many steps the kernels cut a row's range: 255, or 127 where 16 bits must hold two products."""
    compiled = native.library()
    assert compiled is not None
    count: int = compiled.hashee_int8_steps()
    return count


def linear(rows: Tensor, matrix: Matrix) -> Tensor:
    """Multiply rows by a weight and add the bias: (rows, width) -> (rows, features)."""
    compiled = native.library()
    assert compiled is not None
    product = rows.new_empty(len(rows), matrix.out_features)
    compiled.hashee_int8_linear(
        *(rows.data_ptr(), rows.stride(0), native.pointers(matrix.fields()), product.data_ptr()),
        *(len(rows), matrix.in_features, matrix.out_features, torch.get_num_threads()),
    )
    return product


@dataclass(frozen=True)
class PostAttention:
    """What follows attention in a post-norm layer."""

    products: tuple[Matrix, Matrix, Matrix]
    """The output projection and the two products of the feed-forward."""
    norms: Sequence[Tensor]
    """Weight and bias of the norm after attention, then of that after the feed-forward."""
    epsilons: tuple[float, float]

    @property
    def inner(self) -> int:
        """Inner width of the feed-forward."""
        return self.products[1].out_features

    def fields(self) -> list[int]:
        """Return all addresses in the order in which the kernels take them."""
        return [*(field for matrix in self.products for field in matrix.fields()), *map(Tensor.data_ptr, self.norms)]


def post_attention(context: Tensor, states: Tensor, part: PostAttention) -> Tensor:
    """Do what `native.post_attention` does. context, states: (rows, width). Returns (rows, width)."""
    compiled = native.library()
    assert compiled is not None
    updated = context.new_empty(context.shape)
    compiled.hashee_int8_post_attention(
        *(context.data_ptr(), context.stride(0), states.data_ptr(), states.stride(0)),
        *(native.pointers(part.fields()), (ctypes.c_float * 2)(*part.epsilons), updated.data_ptr()),
        *(*context.shape, part.inner, torch.get_num_threads()),
    )
    return updated


@dataclass(frozen=True)
class AttentionSettings:
    """The numbers of a layer's attention."""

    heads: int
    scale: float


def attend_absorbed(
    query: Tensor,
    states: Tensor,
    weights: tuple[Matrix, Matrix],
    sequences: tuple[Tensor, Tensor, Tensor],
    attention: AttentionSettings,
) -> Tensor:
    """Do what `native.attend_absorbed` does, with the weights of keys and values; `query` is overwritten."""
    compiled = native.library()
    assert compiled is not None
    (active, width), (slots, lengths, queries) = query.shape, sequences
    context = query.new_empty(active, width)
    compiled.hashee_int8_attend(
        *(query.data_ptr(), states.data_ptr(), states.stride(0), native.pointers(_absorbed(weights, attention.heads))),
        *(slots.data_ptr(), slots.stride(0), lengths.data_ptr(), queries.data_ptr(), len(slots)),
        *(active, width, attention.heads, attention.scale, context.data_ptr(), torch.get_num_threads()),
    )
    return context


@dataclass(frozen=True)
class LayerWeights:
    """The weights of one post-norm layer."""

    projections: tuple[Matrix, Matrix, Matrix] | list[Tensor | None]
    """Of queries, keys and values; in float32 the first five of `native.Layer`."""
    post_attention: PostAttention

    @property
    def inner(self) -> int:
        """Inner width of the feed-forward."""
        return self.post_attention.inner

    def fields(self, heads: int) -> list[int | None]:
        """Return all addresses in the order in which the kernels take them."""
        if isinstance(self.projections, list):
            return [None, *native.addresses(self.projections), *7 * [None], *self.post_attention.fields()]
        query, key, value = self.projections
        return [*query.fields(), *_absorbed((key, value), heads), *self.post_attention.fields()]


@dataclass(frozen=True)
class Layer:
    """One post-norm layer of those that `layers_` runs."""

    weights: LayerWeights
    active: int
    """Number of first rows, which it updates."""
    queries: Sequence[int]
    """Number of them in each sequence."""
    absorbed: bool
    """Whether attention runs in the absorbed form."""

    @property
    def inner(self) -> int:
        """Inner width of the feed-forward."""
        return self.weights.inner

    @property
    def epsilons(self) -> tuple[float, float]:
        """Of the two norms."""
        return self.weights.post_attention.epsilons


def layers_(
    states: Tensor,
    layers: Sequence[Layer],
    sequences: tuple[Tensor, Sequence[int]],
    attention: AttentionSettings,
) -> None:
    """Do what `native.layers_` does, for any number of rows."""
    compiled = native.library()
    assert compiled is not None
    (tokens, width), (slots, lengths) = states.shape, sequences
    compiled.hashee_int8_layers(
        *(
            states.data_ptr(),
            native.pointers([field for layer in layers for field in layer.weights.fields(attention.heads)]),
        ),
        (ctypes.c_float * (2 * len(layers)))(*(epsilon for layer in layers for epsilon in layer.epsilons)),
        *(native.sizes([layer.active for layer in layers]), native.sizes([layer.absorbed for layer in layers])),
        *(slots.data_ptr(), slots.stride(0), native.sizes(lengths)),
        *(native.sizes([n for layer in layers for n in layer.queries]), len(lengths), len(layers)),
        *(tokens, width, layers[0].inner, attention.heads, attention.scale, torch.get_num_threads()),
    )


def _absorbed(weights: tuple[Matrix, Matrix], heads: int) -> list[int]:
    key, value = weights
    return [*key.fields(), *value.fields(), key.column_sums(heads).data_ptr()]
