"""The slow, padded, obviously right version: it defines what every fast path must equal.

The Hugging Face model runs as it is, at full depth and on every position. After each layer a hook puts the old
state back wherever a token had already left. Nothing here is shared with the packed engine, not even its adapters:
where the layers are is written down below, and which one is running is counted as Hugging Face runs them.
"""

from collections.abc import Iterator
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
    "DistilBertModel": "transformer.layer",
    "ElectraModel": "encoder.layer",
    "MBartEncoder": "layers",
    "ModernBertModel": "layers",
    "MPNetModel": "encoder.layer",
    "RobertaModel": "encoder.layer",
    "RobertaPreLayerNormModel": "encoder.layer",
    "XLMRobertaModel": "encoder.layer",
}
"""Where an encoder, by the name of its class or of a class that it inherits from, keeps its layers."""


@contextmanager
def exits_by_hooks(model: PreTrainedModel, exit_layers: Tensor, input_ids: Tensor) -> Iterator[None]:
    """Make a dense model freeze every token after its exit layer while the context lasts.

    exit_layers: (vocabulary,) exit layer of every token id; input_ids: (batch, length) ids of the one batch that runs.
    """
    encoder, layers = _encoder_and_layers(model)
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
        # A layer of ALBERT's is a group, which runs many times, and its parts read each other's states.
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


def _encoder_and_layers(model: Module) -> tuple[Module, list[Module]]:
    for module in model.modules():
        for kind in type(module).__mro__:
            if kind.__name__ in LAYERS:
                return module, list(module.get_submodule(LAYERS[kind.__name__]).children())
    raise UnsupportedModel(
        f"the reference does not know where {type(model).__name__} has its layers; add its encoder to LAYERS"
    )
