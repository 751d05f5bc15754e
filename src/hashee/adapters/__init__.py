"""The model families that hashee knows. Adding one is a file here and a line in ADAPTERS."""

from typing import Any

import torch
import transformers
from transformers import PreTrainedConfig

from hashee.adapters.adapter import Adapter, EncoderShape, Tokens
from hashee.adapters.albert import AlbertAdapter
from hashee.adapters.bart import BartAdapter, MBartAdapter
from hashee.adapters.bert import BertAdapter
from hashee.adapters.cpt import CptAdapter
from hashee.adapters.distilbert import DistilBertAdapter
from hashee.adapters.elasticbert import ElasticBertAdapter
from hashee.adapters.electra import ElectraAdapter
from hashee.adapters.mpnet import MPNetAdapter
from hashee.adapters.roberta import CamembertAdapter, RobertaAdapter, XLMRobertaAdapter
from hashee.adapters.roberta_prelayernorm import RobertaPreLayerNormAdapter
from hashee.errors import UnsupportedModel
from hashee.versions import NEEDED_BY_MODELS, check_private

check_private(torch, NEEDED_BY_MODELS)
check_private(transformers, NEEDED_BY_MODELS)

__all__ = ["ADAPTERS", "PREFIX", "Adapter", "EncoderShape", "Tokens", "adapter_for"]

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
        RobertaAdapter(),
        RobertaPreLayerNormAdapter(),
        XLMRobertaAdapter(),
    )
}


def adapter_for(config: PreTrainedConfig | Any) -> Adapter:
    """Return the adapter of a config's family, converted or not."""
    model_type = getattr(config, "model_type", type(config).__name__)
    adapter = ADAPTERS.get(model_type.removeprefix(PREFIX))
    if adapter is None:
        known = ", ".join(sorted(ADAPTERS))
        raise UnsupportedModel(f"no adapter covers model type {model_type!r}; hashee knows {known}")
    return adapter
