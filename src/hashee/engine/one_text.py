"""A text on its own: ids to states in one call of the kernels, since Python takes longer than they do.

What a call needs of an encoder, the addresses of all weights above all, is kept in the encoder. Weights may change, and
modules be replaced or hooked, in ways that no counter shows, so every call compares what was kept with what is there.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from hashee.engine import native
from hashee.engine.adapter import Adapter
from hashee.engine.block import Block, absorbing_saves_in, can_absorb, epsilons
from hashee.engine.first_layer import embedding_tables, has_summed_embeddings
from hashee.engine.fused import int8_layer_weights, layer_weights
from hashee.engine.int8 import Int8Linear
from hashee.engine.memory import is_readable
from hashee.engine.native.one_text import TextEncoder, run_text
from hashee.engine.watch import Watch

LONGEST = 1024
"""Tokens of a text at most; longer ones do not notice what Python takes."""
LONGEST_IN_FLOAT32 = 64
"""The same in float32, where the first layer's projections of longer texts are rather looked up."""

Inputs = tuple[Tensor, Tensor | None, Tensor | None]
"""Ids, mask and token types, (batch, length) each."""


@dataclass(frozen=True)
class _Prepared:
    """What a call needs of an encoder, and what that follows from."""

    watch: Watch
    """Of the embeddings and layers."""
    call: TextEncoder | None
    """None: the kernels cannot run all of it."""
    memory: tuple[Any, ...] = ()
    """Arrays that the call points to."""


class OneTextCache:
    """What is kept for one encoder, which owns it; copied and unpickled encoders start without it."""

    def __init__(self) -> None:
        self.prepared: _Prepared | None = None

    def clear(self) -> None:
        """Drop what is kept."""
        self.prepared = None

    def __deepcopy__(self, memo: Any) -> "OneTextCache":
        return OneTextCache()

    def __reduce__(self) -> tuple[type["OneTextCache"], tuple[()]]:
        return OneTextCache, ()


def run_one_text(
    adapter: Adapter, encoder: Any, inputs: Inputs, exit_layers: Tensor, *, first_only: bool
) -> Tensor | None:
    """Return the states of a batch of one short text, or None where the packed engine must run it.

    exit_layers: (vocabulary,). Returns (1, length, width), as `PackedStates.unpacked` does. Whatever is wrong with a
    text is left to the packed engine, which says so.
    """
    if torch.is_grad_enabled() or encoder.training or torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu"):
        return None
    if not (_is_able(type(adapter)) and _is_one_text(inputs) and _is_readable(exit_layers)):
        return None
    shape, call = inputs[0].shape, _call_for(adapter, encoder)
    if call is None or (not call.is_int8 and shape[1] > LONGEST_IN_FLOAT32) or len(exit_layers) < call.word_rows:
        return None
    has_own_positions = type(adapter).positions is not Adapter.positions
    positions = adapter.positions(encoder, inputs[0]).contiguous() if has_own_positions else None
    states = torch.empty(*shape, call.width)
    return states if run_text(call, (*inputs, positions), exit_layers, states, first_only) else None


@cache
def _is_able(family: type[Adapter]) -> bool:
    """Return whether the embeddings of a family are a sum, in which alone positions count."""
    has_terms = family.position_terms is not Adapter.position_terms or family.position_bias is not Adapter.position_bias
    return family.summed_embeddings is not None and not has_terms


def _is_one_text(inputs: Inputs) -> bool:
    """Return whether tensors are one short text, in the form that kernels read."""
    shape = inputs[0].shape
    given = [tensor for tensor in inputs if tensor is not None]
    return (
        len(shape) == 2
        and shape[0] == 1
        and 0 < shape[1] <= LONGEST
        and all(tensor.shape == shape and _is_readable(tensor) for tensor in given)
    )


def _is_readable(tensor: Tensor) -> bool:
    return tensor.dtype == torch.int64 and tensor.is_cpu and tensor.is_contiguous()


def _call_for(adapter: Adapter, encoder: Any) -> TextEncoder | None:
    """Return what a call takes of an encoder, made anew if anything that it follows from has changed."""
    kept: OneTextCache = encoder.one_text_cache
    prepared = kept.prepared
    if prepared is None or not prepared.watch.sees_no_change():
        prepared = _prepare(adapter, encoder)
        kept.prepared = prepared
    return prepared.call


def _prepare(adapter: Adapter, encoder: Any) -> _Prepared:
    """Return what a call needs of an encoder."""
    watch = Watch((encoder,))
    refused = _Prepared(watch, None)
    if not has_summed_embeddings(adapter, encoder) or adapter.final_norm(encoder) is not None:
        return refused
    norm, (words, positions, *types) = encoder.embeddings.LayerNorm, embedding_tables(encoder.embeddings)
    vectors, width = (norm.weight, norm.bias), words.embedding_dim
    tables = [words.weight, positions.weight, *(table.weight for table in types)]
    if any(vector is None for vector in vectors) or not all(map(is_readable, (*tables, *vectors))):
        return refused
    blocks = tuple(adapter.blocks(encoder))
    layers = _layers(blocks, torch.empty(0, width))
    if layers is None:
        return refused
    attention = blocks[0].attention
    arrays = layers.arrays()
    call = TextEncoder(
        *(words.weight.data_ptr(), positions.weight.data_ptr(), types[0].weight.data_ptr() if types else None),
        *(norm.weight.data_ptr(), norm.bias.data_ptr(), *map(ctypes.addressof, arrays)),
        *(len(words.weight), min(len(positions.weight), adapter.max_position(encoder))),
        *(len(types[0].weight) if types else 0, len(blocks), width, layers.inner, attention.heads),
        *(layers.is_int8, norm.eps, attention.scale),
    )
    return _Prepared(watch, call, arrays)


@dataclass(frozen=True)
class _Layers:
    """All layers as one call takes them."""

    fields: list[int | None]
    """Addresses of all weights."""
    epsilons: list[float]
    savings: list[float]
    """Three of each: what the absorbed form saves for every token, active token and pair of both."""
    inner: int
    is_int8: bool

    def arrays(self) -> tuple[Any, Any, Any]:
        """Return the lists as C takes them."""
        epsilons = (ctypes.c_float * len(self.epsilons))(*self.epsilons)
        savings = (ctypes.c_double * len(self.savings))(*self.savings)
        return native.pointers(self.fields), epsilons, savings


def _layers(blocks: Sequence[Block], states: Tensor) -> _Layers | None:
    """Return all layers, or None if one call cannot run them. states: of the kind that the layers take."""
    if not blocks or not native.supports((states,), ()):
        return None
    alike = {(block.attention.heads, block.attention.scale) for block in blocks}
    weights = {block.attention.projections.modules[0] for block in blocks}
    numbers = [block.layer for block in blocks]
    if len(alike) > 1 or len(weights) < len(blocks) or numbers != list(range(1, len(blocks) + 1)):
        return None
    heads = blocks[0].attention.heads
    if states.shape[1] % heads or states.shape[1] // heads % 8 or not all(map(can_absorb, blocks)):
        return None
    is_int8 = any(isinstance(module, Int8Linear) for block in blocks for module in block.feed_forward.modules)
    fields: list[int | None] = []
    for block in blocks:
        found = (_int8_fields if is_int8 else _float_fields)(block, states)
        if found is None:
            return None
        fields += found
    inner: set[Any] = {block.feed_forward.expand.out_features for block in blocks}
    if len(inner) > 1:
        return None
    # The saving is linear in these three, so one of each tells all.
    units = ((1, 0, 0), (0, 1, 0), (0, 0, 1))
    savings = [absorbing_saves_in(block, *unit) for block in blocks for unit in units]
    return _Layers(fields, [each for block in blocks for each in epsilons(block)], savings, inner.pop(), is_int8)


def _float_fields(block: Block, states: Tensor) -> list[int | None] | None:
    weights = layer_weights(block, states)
    return None if weights is None else native.addresses(weights)


def _int8_fields(block: Block, states: Tensor) -> list[int | None] | None:
    weights = int8_layer_weights(block, states)
    return None if weights is None else weights.fields(block.attention.heads)
