"""The padded reference implementation: it is slow and simple, and defines what every fast path must equal.

The Hugging Face model runs unchanged, at full depth and on every position. After each layer a hook restores the old
state of every token that has exited before. Nothing here is shared with the packed engine, not even its adapters:
the modules of the layers are listed below, and the running layer is counted as Hugging Face runs them.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from transformers import PreTrainedModel

from hashee.errors import UnsupportedModel

LAYERS = {
    "AlbertModel": "encoder.albert_layer_groups",
    "BartEncoder": "layers",
    "BertModel": "encoder.layer",
    "CamembertModel": "encoder.layer",
    "DebertaV2Model": "encoder.layer",
    "DistilBertModel": "transformer.layer",
    "ElectraModel": "encoder.layer",
    "EuroBertModel": "layers",
    "GteModel": "layers",
    "MarianEncoder": "layers",
    "MBartEncoder": "layers",
    "ModernBertModel": "layers",
    "MPNetModel": "encoder.layer",
    "NomicBertModel": "layers",
    "RobertaModel": "encoder.layer",
    "RobertaPreLayerNormModel": "encoder.layer",
    "T5Stack": "block",
    "XLMRobertaModel": "encoder.layer",
}
"""The submodule with an encoder's layers, by the name of the encoder's class or of a class that it inherits from."""


DECODER_LAYERS = {
    "BartDecoder": "layers",
    "LlamaModel": "layers",
    "MarianDecoder": "layers",
    "MBartDecoder": "layers",
}
"""The same for decoders."""


@contextmanager
def decoder_exits_by_hooks(model: PreTrainedModel, exit_layers: Tensor) -> Iterator[None]:
    """Make the decoder of a dense model freeze every position after its exit layer while the context lasts.

    The model may be called and may generate as ever, with its cache or without: a dense layer projects keys and values
    from the states that it is given, and those of frozen positions are the old ones. exit_layers: (vocabulary,)
    """
    decoder, layers = _module_and_layers(model, DECODER_LAYERS)
    exits, running = exit_layers, 0

    def start(module: Module, inputs: Any, options: dict[str, Any]) -> None:
        nonlocal exits, running
        ids = options["input_ids"] if "input_ids" in options else inputs[0]
        exits, running = exit_layers[ids].unsqueeze(-1), 0

    def undo_updates_of_frozen_positions(module: Module, inputs: tuple[Tensor, ...], output: Any) -> Any:
        nonlocal running
        running += 1
        updated = output[0] if isinstance(output, tuple) else output
        kept = torch.where(exits >= running, updated, inputs[0])
        return (kept, *output[1:]) if isinstance(output, tuple) else kept

    handles = [decoder.register_forward_pre_hook(start, with_kwargs=True)]
    handles += [layer.register_forward_hook(undo_updates_of_frozen_positions, prepend=True) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def exits_by_hooks(model: PreTrainedModel, exit_layers: Tensor, input_ids: Tensor) -> Iterator[None]:
    """Make a dense model freeze every token after its exit layer while the context lasts.

    exit_layers: (vocabulary,) exit layer of every token id; input_ids: (batch, length) ids of the one batch that runs.
    """
    encoder, layers = _module_and_layers(model, LAYERS)
    exits = exit_layers[input_ids].unsqueeze(-1)
    running = 0

    def start(module: Module, inputs: Any) -> None:
        nonlocal running
        running = 0

    def start_next_layer(module: Module, inputs: Any) -> None:
        nonlocal running
        running += 1

    def undo_updates_of_frozen_tokens(module: Module, inputs: tuple[Tensor, ...], output: Any) -> Any:
        updated = output[0] if isinstance(output, tuple) else output
        kept = torch.where(exits >= running, updated, inputs[0])
        return (kept, *output[1:]) if isinstance(output, tuple) else kept

    handles = [encoder.register_forward_pre_hook(start)]
    for layer in layers:
        # A layer of ALBERT is a group of inner layers, which runs many times; every inner layer must see frozen states.
        parts: Any = getattr(layer, "albert_layers", [layer])
        handles.append(layer.register_forward_pre_hook(start_next_layer))
        # Before the hooks that collect hidden states.
        handles += [part.register_forward_hook(undo_updates_of_frozen_tokens, prepend=True) for part in parts]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def run_reference(model: PreTrainedModel, exit_layers: Tensor, **inputs: Any) -> Any:
    """Return the outputs of a dense Hugging Face model in which every token freezes after its exit layer."""
    with exits_by_hooks(model, exit_layers, inputs["input_ids"]):
        return model(**inputs)


def _module_and_layers(model: Module, known: Mapping[str, str]) -> tuple[Module, list[Module]]:
    for module in model.modules():
        for base in type(module).__mro__:
            if base.__name__ in known:
                return module, list(module.get_submodule(known[base.__name__]).children())
    raise UnsupportedModel(
        f"the reference does not know where {type(model).__name__} has its layers; add its encoder to LAYERS"
    )
