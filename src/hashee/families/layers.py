"""The layers of a model one by one, and which of them a shallower model takes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch.nn import Module

from hashee.engine.block import Block
from hashee.errors import UnsupportedModel
from hashee.families.adapters import adapter_for


def spread_layers(number: int, layers: int) -> tuple[int, ...]:
    """Return so many layers, numbered from 1, evenly spaced from the first to the last: 1, 3, 5, 8, 10, 12 of 12."""
    return tuple(int(layer) for layer in np.linspace(1, layers, number).round())


def encoder_of(model: Any) -> Any:
    """Return the part of a dense or converted model that turns ids into hidden states."""
    encoder_class = adapter_for(model.config).encoder_class
    return next(module for module in model.modules() if isinstance(module, encoder_class))


def blocks_by_layer(model: Any) -> list[list[tuple[Module, Block]]]:
    """Return the blocks of each layer with their Hugging Face modules; one block, or more in ALBERT's inner groups."""
    adapter, encoder = adapter_for(model.config), encoder_of(model)
    found: list[list[tuple[Module, Block]]] = [[] for _ in range(adapter.shape(model.config).layers)]
    for module, block in zip(adapter.layers(encoder), adapter.blocks(encoder), strict=True):
        found[block.layer - 1].append((module, block))
    return found


def refuse_unlike_layers(config: Any, source: str) -> None:
    """Raise for a model whose layers cannot take each other's place."""
    if getattr(config, "num_hidden_groups", 1) > 1:
        raise UnsupportedModel(
            f"{source} deals its layers out to {config.num_hidden_groups} groups, so some of them are "
            f"no model of their own; choose a backbone with one group, or with separate layers"
        )
    if adapter_for(config).shape(config).windows:
        raise UnsupportedModel(
            f"layers of {config.model_type} models differ in how far they see, so that none can take another's "
            f"place; choose a backbone whose layers are alike"
        )


def copy_layers(model: Any, source: Any, chosen: Sequence[int]) -> None:
    """Give a model's first layers the weights of chosen layers, numbered from 1, of another model of its family."""
    whole = blocks_by_layer(source)
    for own, number in zip(blocks_by_layer(model), chosen, strict=False):
        for (module, _), (other, _) in zip(own, whole[number - 1], strict=True):
            module.load_state_dict(other.state_dict())
