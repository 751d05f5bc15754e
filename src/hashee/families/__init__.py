"""The model families that hashee knows. Adding one is a file here and a line in ADAPTERS."""

from typing import Any

import torch
import transformers
from transformers import PreTrainedConfig

from hashee.cost.macs import EncoderShape
from hashee.engine.adapter import Adapter, Tokens, is_library_class, name_of_own_class
from hashee.errors import UnsupportedModel
from hashee.families.albert import AlbertAdapter
from hashee.families.bart import BartAdapter, MBartAdapter
from hashee.families.bert import BertAdapter
from hashee.families.cpt import CptAdapter
from hashee.families.distilbert import DistilBertAdapter
from hashee.families.elasticbert import ElasticBertAdapter
from hashee.families.electra import ElectraAdapter
from hashee.families.modernbert import ModernBertAdapter
from hashee.families.mpnet import MPNetAdapter
from hashee.families.roberta import CamembertAdapter, RobertaAdapter, XLMRobertaAdapter
from hashee.families.roberta_prelayernorm import RobertaPreLayerNormAdapter
from hashee.versions import NEEDED_BY_MODELS, check_private

check_private(torch, NEEDED_BY_MODELS)
check_private(transformers, NEEDED_BY_MODELS)

__all__ = [
    "ADAPTERS",
    "PREFIX",
    "Adapter",
    "EncoderShape",
    "Tokens",
    "adapter_for",
    "is_library_class",
    "name_of_own_class",
]

PREFIX = "hashee-"
"""A converted model's type is this prefix and the type of its family."""

ADAPTERS: dict[str, Adapter] = {
    adapter.model_type: adapter
    for adapter in (
        AlbertAdapter(),
        BartAdapter(),
        BertAdapter(),
        CamembertAdapter(),
        CptAdapter(),
        DistilBertAdapter(),
        ElasticBertAdapter(),
        ElectraAdapter(),
        MBartAdapter(),
        MPNetAdapter(),
        ModernBertAdapter(),
        RobertaAdapter(),
        RobertaPreLayerNormAdapter(),
        XLMRobertaAdapter(),
    )
}


def adapter_for(config: PreTrainedConfig | type[PreTrainedConfig] | Any) -> Adapter:
    """Return the adapter of a family, from a config, converted or not, or from the class of one."""
    model_type = getattr(config, "model_type", type(config).__name__)
    adapter = ADAPTERS.get(model_type.removeprefix(PREFIX))
    if adapter is None:
        known = ", ".join(sorted(ADAPTERS))
        raise UnsupportedModel(f"no adapter covers model type {model_type!r}; hashee knows {known}")
    config_class = config if isinstance(config, type) else type(config)
    if not issubclass(config_class, adapter.config_class):
        # Code from elsewhere may call its models by a name that transformers uses too.
        raise UnsupportedModel(
            f"{config_class.__module__}.{config_class.__name__} calls its models {model_type!r} but is no "
            f"{adapter.config_class.__name__}, so nothing is known of their layers"
        )
    return adapter


def head_reads_first_row(model_or_config: Any) -> bool:
    """Tell whether a model's head reads the first position only, converted or to be converted; a config has no head."""
    if isinstance(model_or_config, PreTrainedConfig):
        return False
    encoder = getattr(model_or_config, "hashed_encoder", None)
    if encoder is not None:
        return bool(encoder.reads_first_row)
    return adapter_for(model_or_config.config).reads_first_row(type(model_or_config), model_or_config.config)
