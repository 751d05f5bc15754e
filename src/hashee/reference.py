"""The slow, padded, obviously right version: it defines what every fast path must equal.

The Hugging Face model runs as it is, at full depth and on every position. After each layer a hook puts the old
state back wherever a token had already left. Nothing here is shared with the packed engine but the list of layers.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from transformers import PreTrainedModel

from hashee.adapters import adapter_for


@contextmanager
def exits_by_hooks(model: PreTrainedModel, exit_layers: Tensor, input_ids: Tensor) -> Iterator[None]:
    """Make a dense model freeze every token after its exit layer while the context lasts.

    exit_layers: (vocabulary,) exit layer of every token id; input_ids: (batch, length) ids of the one batch that runs.
    """
    adapter = adapter_for(model.config)
    encoder = next(module for module in model.modules() if isinstance(module, adapter.encoder_class))
    exits = exit_layers[input_ids].unsqueeze(-1)
    layers = adapter.layers(encoder)
    place = 0

    def undo_updates_of_frozen_tokens(module: Module, inputs: tuple[Tensor, ...], output: Any) -> Any:
        nonlocal place
        layer = adapter.exit_layer(encoder, place)
        place += 1
        updated = output[0] if isinstance(output, tuple) else output
        kept = torch.where(exits >= layer, updated, inputs[0])
        return (kept, *output[1:]) if isinstance(output, tuple) else kept

    # Shared layers (ALBERT) appear many times in the list but need one hook, before those that collect hidden states.
    handles = [
        layer.register_forward_hook(undo_updates_of_frozen_tokens, prepend=True) for layer in dict.fromkeys(layers)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def run_reference(model: PreTrainedModel, exit_layers: Tensor, **inputs: Any) -> Any:
    """Return the outputs of a dense Hugging Face model in which every token freezes after its exit layer."""
    with exits_by_hooks(model, exit_layers, inputs["input_ids"]):
        return model(**inputs)
