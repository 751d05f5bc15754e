"""int8 on top of exits: a converted model whose linear layers have one byte a weight (`engine/int8.py`)."""

import copy
import logging
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from hashee.engine.block import can_absorb_int8
from hashee.engine.int8 import Int8Linear, has_kernels
from hashee.engine.linear import is_bare_linear
from hashee.engine.memory import release, unchanged_mappings
from hashee.errors import UnsupportedModel, UnsupportedOption
from hashee.hf.model import HashedModel
from hashee.hf.sentence_models import is_sentence_model, transformer_inside, with_transformer

log = logging.getLogger(__name__)

METHODS = ("int8",)


def quantize(model: Any) -> Any:
    """Return a converted model of the same class whose encoder runs with int8 weights, for inference on CPUs.

    model: one of transformers' classes, or a SentenceTransformer or CrossEncoder with one inside. Everything else
    (embeddings, norms, heads, exits) stays as it is and is shared with `model`, which is left alone.
    """
    if is_sentence_model(model):
        inside = transformer_inside(model)
        return with_transformer(model, inside, quantize(inside))
    _check(model)
    return _quantize_(_sharing_copy(model))


def quantize_(model: Any) -> Any:
    """Do what `quantize` does to a model that nobody else needs, so that each float weight is freed at once."""
    _check(model)
    return _quantize_(model.requires_grad_(False))


def _check(model: Any) -> None:
    if not isinstance(model, HashedModel):
        raise UnsupportedModel(
            f"{type(model).__name__} is not a converted model; quantize what hashee.convert or hashee.load returned"
        )
    if not has_kernels():
        log.warning("no int8 kernels of ours or of torch %s here: int8 saves memory, but no time", torch.__version__)
    _check_device(model)


def _quantize_(quantized: Any) -> Any:
    encoder = quantized.eval().hashed_encoder
    names = {module: name for name, module in encoder.named_modules()}
    chosen: dict[str, Any] = {names[module]: module for module in _chosen(encoder)}
    for name, module in chosen.items():
        if not (isinstance(module, nn.Linear) and is_bare_linear(module)):
            raise UnsupportedModel(
                f"{name} is a {type(module).__name__}, not a bare Linear layer, or carries hooks; merge "
                "adapters (merge_and_unload) and remove hooks before quantizing, and quantize once"
            )
    del names, module
    mapped = unchanged_mappings()
    while chosen:
        name = next(iter(chosen))
        linear = chosen.pop(name)
        encoder.set_submodule(name, Int8Linear(linear))
        release(linear.weight.detach(), mapped)
    quantized.save_pretrained = _refuse_to_save
    return quantized


def _chosen(encoder: Any) -> Iterator[nn.Module]:
    """Yield the layers to quantize, some of them several times where layers share weights."""
    adapter = encoder.adapter
    absorbs = adapter.shape(encoder.config).absorbable
    lowest = int(encoder.exit_layers.min())
    for number, block in enumerate(adapter.blocks(encoder)):
        yield from (block.attention.output, *block.feed_forward.modules)
        if number == 0 and adapter.summed_embeddings is not None:
            continue  # what the first layer projects is looked up, which beats any product
        first, *others = block.attention.projections.modules
        yield first
        # Without kernels of our own, the absorbed form, which runs where tokens have exited, takes float32 alone.
        if not absorbs or block.layer <= lowest or can_absorb_int8(block):
            yield from others


def _check_device(model: Any) -> None:
    for parameter in model.hashed_encoder.parameters():
        if parameter.dtype != torch.float32 or parameter.device.type != "cpu":
            raise UnsupportedOption(
                f"the model is in {parameter.dtype} on {parameter.device}, but int8 is for float32 models on the CPU; "
                "call model.float().cpu() first"
            )


def _sharing_copy(model: Any) -> Any:
    """Return a copy of a model that shares its tensors; they are frozen in the copy, which cannot be trained."""
    shared: dict[int, Any] = {id(buffer): buffer for buffer in model.buffers()}
    for parameter in model.parameters():
        shared[id(parameter)] = nn.Parameter(parameter.detach(), requires_grad=False)
    return copy.deepcopy(model, shared)


def _refuse_to_save(*_: Any, **__: Any) -> None:
    raise UnsupportedOption(
        "an int8 model is not saved; save the float32 model that it was made from and quantize after loading: "
        'hashee.load(folder, quantize="int8")'
    )
