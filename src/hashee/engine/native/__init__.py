"""Compiled kernels where torch is slow: products and layers on few rows, GELU, norms, absorbed attention.

The C source is compiled once for the processor's instruction set (`variants.py`), by the machine's own compiler, and
kept in a private cache folder of the user. Without a compiler, on other processors, or with HASHEE_KERNELS=torch there
is no library and everything runs in torch, with the same outputs.
"""

import ctypes
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from hashee.engine.native.compiler import CompileError, Opened, open_library
from hashee.engine.native.variants import SWITCH, TORCH, choose
from hashee.errors import HasheeError

log = logging.getLogger(__name__)

_POINTER, _SIZE, _COUNT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "hashee_linear": (_POINTER, _SIZE, *3 * (_POINTER,), *3 * (_SIZE,), _COUNT),
    "hashee_gelu": (*2 * (_POINTER,), *2 * (_SIZE,), _COUNT),
    "hashee_post_attention": (*(_POINTER, _SIZE, _POINTER, _SIZE), *5 * (_POINTER,), *3 * (_SIZE,), _COUNT),
    "hashee_attend": (
        *(_POINTER, _SIZE, _POINTER, _SIZE),
        *4 * (_POINTER,),
        _SIZE,
        *2 * (_POINTER,),
        *4 * (_SIZE,),
        ctypes.c_float,
        *2 * (_POINTER,),
        _COUNT,
    ),
    "hashee_layers": (
        *6 * (_POINTER,),
        _SIZE,
        *2 * (_POINTER,),
        *6 * (_SIZE,),
        ctypes.c_float,
        _POINTER,
        _COUNT,
    ),
    "hashee_int8_steps": (),
    "hashee_int8_linear": (_POINTER, _SIZE, *2 * (_POINTER,), *3 * (_SIZE,), _COUNT),
    "hashee_int8_post_attention": (
        *(_POINTER, _SIZE, _POINTER, _SIZE),
        *3 * (_POINTER,),
        *3 * (_SIZE,),
        _COUNT,
    ),
    "hashee_int8_attend": (
        *(_POINTER, _POINTER, _SIZE, _POINTER, _POINTER, _SIZE),
        *2 * (_POINTER,),
        *4 * (_SIZE,),
        ctypes.c_float,
        _POINTER,
        _COUNT,
    ),
    "hashee_int8_layers": (
        *6 * (_POINTER,),
        _SIZE,
        *2 * (_POINTER,),
        *6 * (_SIZE,),
        ctypes.c_float,
        _COUNT,
    ),
    "hashee_text": (*4 * (_POINTER,), _COUNT),
    "hashee_train_gelu": (*3 * (_POINTER,), *2 * (_SIZE,), *2 * (_COUNT,)),
    "hashee_train_gelu_back": (*4 * (_POINTER,), *2 * (_SIZE,), *2 * (_COUNT,)),
    "hashee_train_end": (*6 * (_POINTER,), *2 * (_SIZE,), *2 * (_COUNT,)),
    "hashee_train_end_back": (*6 * (_POINTER,), *2 * (_SIZE,), *2 * (_COUNT,)),
    "hashee_train_attend": (*2 * (_POINTER,), *2 * (_COUNT,)),
    "hashee_train_attend_back": (*5 * (_POINTER,), *2 * (_COUNT,)),
}
_RESULTS = {"hashee_int8_steps": _COUNT, "hashee_text": _SIZE}

_LOCK = Lock()
"""Held while the library is opened, so that concurrent threads compile it once."""


@dataclass(frozen=True)
class Kernels:
    """The compiled kernels of this process, or why there are none."""

    opened: Opened | None
    variant: str
    """Name of the instruction set that they are for, or `torch`."""
    reason: str
    """Why these."""
    notes: tuple[str, ...] = ()
    """What went wrong on the way."""


@cache
def kernels() -> Kernels:
    """Open the compiled kernels, compiling them if needed; raise if ones are asked for that cannot run here."""
    choice = choose()
    notes: list[str] = []
    for variant in choice.variants:
        try:
            with _LOCK:
                opened = open_library(_SIGNATURES, variant)
        except CompileError as error:
            notes.append(f"{variant.name}: {error}")
            log.info("no %s kernels: %s", variant.name, error)
        except (HasheeError, OSError) as error:
            notes.append(f"{variant.name}: {error}")
            break
        else:
            for name, arguments in _SIGNATURES.items():
                function = getattr(opened.library, name)
                function.argtypes, function.restype = arguments, _RESULTS.get(name)
            kept = () if opened.note is None else (opened.note,)
            return Kernels(opened, variant.name, choice.reason, (*notes, *kept))
    if choice.variants:
        log.warning("no compiled kernels, so everything runs in torch (%s=torch asks for that): %s", SWITCH, notes[-1])
    reason = "no kernels could be compiled" if choice.variants else choice.reason
    return Kernels(None, TORCH, reason, tuple(notes))


def library() -> ctypes.CDLL | None:
    """Return the compiled kernels, or None where there are none."""
    opened = kernels().opened
    return None if opened is None else opened.library


def supports(states: tuple[Tensor, ...], weights: tuple[Tensor, ...]) -> bool:
    """Return whether there are kernels that take these matrices; rows of states may have any stride."""
    return (
        all(_is_readable(matrix) for matrix in (*states, *weights))
        and all(weight.is_contiguous() for weight in weights)
        and library() is not None
    )


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Do what `F.linear` does. rows: (rows, width); weight: (features, width)."""
    compiled = library()
    assert compiled is not None
    product = rows.new_empty(len(rows), len(weight))
    compiled.hashee_linear(
        *(rows.data_ptr(), rows.stride(0), weight.data_ptr(), _address(bias), product.data_ptr()),
        *(len(rows), rows.shape[1], len(weight), torch.get_num_threads()),
    )
    return product


def gelu_(rows: Tensor, bias: Tensor | None = None) -> Tensor:
    """Do what `F.gelu` does, after adding a bias, in place. rows: (rows, width), contiguous; bias: (width,)."""
    compiled = library()
    assert compiled is not None
    compiled.hashee_gelu(rows.data_ptr(), _address(bias), *rows.shape, torch.get_num_threads())
    return rows


def post_attention(context: Tensor, states: Tensor, weights: Sequence[Tensor], epsilons: tuple[float, float]) -> Tensor:
    """Run the output projection, the feed-forward and the norms of a post-norm layer.

    context, states: (rows, width) outputs of attention and inputs of the layer; weights: weight and bias each of the
    output projection, its norm, the two products of the feed-forward, and its norm; epsilons: of the two norms.
    Returns (rows, width).
    """
    compiled = library()
    assert compiled is not None
    (rows, width), inner = context.shape, len(weights[4])
    attended, updated = context.new_empty(rows, width), context.new_empty(rows, width)
    expanded = context.new_empty(rows, inner)
    compiled.hashee_post_attention(
        *(context.data_ptr(), context.stride(0), states.data_ptr(), states.stride(0)),
        *(pointers(addresses(weights)), (ctypes.c_float * 2)(*epsilons)),
        *(attended.data_ptr(), expanded.data_ptr(), updated.data_ptr(), rows, width, inner, torch.get_num_threads()),
    )
    return updated


def attend_absorbed(
    query: Tensor,
    states: Tensor,
    weights: tuple[Tensor, Tensor, Tensor | None],
    sequences: tuple[Tensor, Tensor, Tensor],
    *,
    heads: int,
    scale: float,
) -> Tensor:
    """Let queries attend to the states of their own sequences in the absorbed form.

    query: (active, width); states: (tokens, width); weights: of keys and values, (width, width) each, and the bias of
    values; sequences: packed rows of each one's tokens, active ones first, (sequences, longest), and the numbers of
    tokens and of queries, (sequences,) each. Returns (active, width).
    """
    compiled = library()
    assert compiled is not None
    (active, width), (key, value, bias), (slots, lengths, queries) = query.shape, weights, sequences
    folded, context = query.new_empty(active, heads, width), query.new_empty(active, width)
    compiled.hashee_attend(
        *(query.data_ptr(), query.stride(0), states.data_ptr(), states.stride(0)),
        *(key.data_ptr(), value.data_ptr(), _address(bias)),
        *(slots.data_ptr(), slots.stride(0), lengths.data_ptr(), queries.data_ptr(), len(slots)),
        *(active, width, heads, scale, folded.data_ptr(), context.data_ptr(), torch.get_num_threads()),
    )
    return context


@dataclass(frozen=True)
class Layer:
    """One post-norm layer of those that `layers_` runs."""

    weights: Sequence[Tensor | None]
    """Weight and bias of queries, the weight of keys, weight and bias of values, and those of `post_attention`;
    the biases of queries and values may be missing."""
    epsilons: tuple[float, float]
    active: int
    """Number of first rows, which it updates."""
    queries: Sequence[int]
    """Number of them in each sequence."""
    absorbed: bool
    """Whether attention runs in the absorbed form."""

    @property
    def inner(self) -> int:
        """Inner width of the feed-forward."""
        expand = self.weights[9]
        assert expand is not None
        return len(expand)


def layers_(
    states: Tensor, layers: Sequence[Layer], sequences: tuple[Tensor, Sequence[int]], *, heads: int, scale: float
) -> None:
    """Run layers one after the other, in place.

    states: (tokens, width), contiguous; layers: with a falling number of active rows; sequences: packed rows of each
    one's tokens by falling exit layer, (sequences, longest), and the number of tokens of each.
    """
    compiled = library()
    assert compiled is not None
    (tokens, width), (slots, lengths), active = states.shape, sequences, layers[0].active
    inner = layers[0].inner
    attention = heads * width * active  # folded queries in the absorbed form, keys and values in the plain form
    if not all(layer.absorbed for layer in layers):
        attention = max(attention, 2 * tokens * width)
    workspace = states.new_empty(active * (3 * width + inner) + attention)
    compiled.hashee_layers(
        *(states.data_ptr(), pointers(addresses([weight for layer in layers for weight in layer.weights]))),
        (ctypes.c_float * (2 * len(layers)))(*(epsilon for layer in layers for epsilon in layer.epsilons)),
        *(sizes([layer.active for layer in layers]), sizes([layer.absorbed for layer in layers])),
        *(slots.data_ptr(), slots.stride(0), sizes(lengths), sizes([n for layer in layers for n in layer.queries])),
        *(len(lengths), len(layers), tokens, width, inner, heads, scale),
        *(workspace.data_ptr(), torch.get_num_threads()),
    )


def sizes(numbers: Sequence[int]) -> ctypes.Array[ctypes.c_int64]:
    """Return numbers as C takes them."""
    return (_SIZE * len(numbers))(*numbers)


def pointers(found: Sequence[int | None]) -> ctypes.Array[ctypes.c_void_p]:
    """Return addresses as C takes them."""
    return (_POINTER * len(found))(*found)


def addresses(tensors: Sequence[Tensor | None]) -> list[int | None]:
    """Return where tensors begin."""
    return [_address(tensor) for tensor in tensors]


def _is_readable(tensor: Tensor) -> bool:
    return (
        tensor.dtype == torch.float32
        and tensor.device.type == "cpu"
        and tensor.stride(1) == 1
        and tensor.shape[1] % 8 == 0
    )


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
