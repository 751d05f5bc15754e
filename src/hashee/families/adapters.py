"""The adapters of every family, and finding those of a model or config."""

from importlib import import_module
from typing import Any

import torch
import transformers
from transformers import PreTrainedConfig

from hashee.engine.adapter import Adapter
from hashee.engine.decoder_adapter import DecoderAdapter
from hashee.errors import UnsupportedModel
from hashee.families import FAMILIES, PREFIX
from hashee.versions import NEEDED_BY_MODELS, check_private

check_private(torch, NEEDED_BY_MODELS)
check_private(transformers, NEEDED_BY_MODELS)

AVAILABLE = tuple(family for family in FAMILIES if family.needs is None or hasattr(transformers, family.needs))
"""The families that this version of transformers has."""
ADAPTERS: dict[str, Adapter] = {
    family.model_type: getattr(import_module(f"hashee.families.{family.module}"), family.adapter)()
    for family in AVAILABLE
    if family.adapter is not None
}
"""Of encoders, by model type."""
DECODERS: dict[str, DecoderAdapter] = {
    family.model_type: getattr(import_module(f"hashee.families.{family.module}"), family.decoder)()
    for family in AVAILABLE
    if family.decoder is not None
}
"""Of decoders in which tokens can exit, by model type."""


def adapter_for(config: PreTrainedConfig | type[PreTrainedConfig] | Any) -> Adapter:
    """Return the adapter of a family's encoder, from a config, converted or not, or from the class of one."""
    model_type = family_of(config)
    if model_type not in ADAPTERS:
        raise UnsupportedModel(
            f"{model_type} models have no encoder: give their table to hashee.convert as decoder_table, and count what "
            "they write with hashee.count_generation"
        )
    return ADAPTERS[model_type]


def decoder_adapter_for(config: PreTrainedConfig | type[PreTrainedConfig] | Any) -> DecoderAdapter | None:
    """Return the adapter of a family's decoder; None if tokens cannot exit in that, or there is none."""
    return DECODERS.get(family_of(config))


def family_of(config: PreTrainedConfig | type[PreTrainedConfig] | Any) -> str:
    """Return the model type of the family that a config, converted or not, or the class of one belongs to."""
    model_type: str = getattr(config, "model_type", type(config).__name__)
    name = model_type.removeprefix(PREFIX)
    adapter: Adapter | DecoderAdapter | None = ADAPTERS.get(name, DECODERS.get(name))
    if adapter is None:
        known = ", ".join(sorted({*ADAPTERS, *DECODERS}))
        raise UnsupportedModel(f"no adapter covers model type {model_type!r}; hashee knows {known}")
    config_class = config if isinstance(config, type) else type(config)
    if not issubclass(config_class, adapter.config_class):
        # Custom code may use a model type that transformers uses too.
        raise UnsupportedModel(
            f"{config_class.__module__}.{config_class.__name__} calls its models {model_type!r} but is no "
            f"{adapter.config_class.__name__}, so nothing is known of their layers"
        )
    return name


def head_reads_first_row(model_or_config: Any) -> bool:
    """Return whether the head of a model, converted or not, reads the first position only; a config has no head."""
    if isinstance(model_or_config, PreTrainedConfig):
        return False
    encoder = getattr(model_or_config, "hashed_encoder", None)
    if encoder is not None:
        return bool(encoder.reads_first_row)
    return adapter_for(model_or_config.config).reads_first_row(type(model_or_config), model_or_config.config)
