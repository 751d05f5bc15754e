"""The adapter of every family, and finding the one of a model or config."""

from importlib import import_module
from typing import Any

import torch
import transformers
from transformers import PreTrainedConfig

from hashee.engine.adapter import Adapter
from hashee.errors import UnsupportedModel
from hashee.families import FAMILIES, PREFIX
from hashee.versions import NEEDED_BY_MODELS, check_private

check_private(torch, NEEDED_BY_MODELS)
check_private(transformers, NEEDED_BY_MODELS)

ADAPTERS: dict[str, Adapter] = {
    family.model_type: getattr(import_module(f"hashee.families.{family.module}"), family.adapter)()
    for family in FAMILIES
}
"""By model type."""


def adapter_for(config: PreTrainedConfig | type[PreTrainedConfig] | Any) -> Adapter:
    """Return the adapter of a family, from a config, converted or not, or from the class of one."""
    model_type = getattr(config, "model_type", type(config).__name__)
    adapter = ADAPTERS.get(model_type.removeprefix(PREFIX))
    if adapter is None:
        known = ", ".join(sorted(ADAPTERS))
        raise UnsupportedModel(f"no adapter covers model type {model_type!r}; hashee knows {known}")
    config_class = config if isinstance(config, type) else type(config)
    if not issubclass(config_class, adapter.config_class):
        # Custom code may use a model type that transformers uses too.
        raise UnsupportedModel(
            f"{config_class.__module__}.{config_class.__name__} calls its models {model_type!r} but is no "
            f"{adapter.config_class.__name__}, so nothing is known of their layers"
        )
    return adapter


def head_reads_first_row(model_or_config: Any) -> bool:
    """Return whether the head of a model, converted or not, reads the first position only; a config has no head."""
    if isinstance(model_or_config, PreTrainedConfig):
        return False
    encoder = getattr(model_or_config, "hashed_encoder", None)
    if encoder is not None:
        return bool(encoder.reads_first_row)
    return adapter_for(model_or_config.config).reads_first_row(type(model_or_config), model_or_config.config)
