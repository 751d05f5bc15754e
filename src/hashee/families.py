"""Classes with exits for every head of every family, made from Hugging Face's and registered with its Auto classes."""

import sys
from typing import Any

import transformers
from transformers import AutoConfig, AutoTokenizer
from transformers.models.auto import tokenization_auto

from hashee.adapters import ADAPTERS, PREFIX, Adapter, adapter_for
from hashee.errors import UnsupportedModel
from hashee.model import HashedEncoder, HashedEncoderWithoutTypes, HashedModel

AUTO_CLASSES = (
    "AutoModel",
    "AutoModelForPreTraining",
    "AutoModelForMaskedLM",
    "AutoModelForSeq2SeqLM",
    "AutoModelForSequenceClassification",
    "AutoModelForTokenClassification",
    "AutoModelForQuestionAnswering",
    "AutoModelForMultipleChoice",
    "AutoModelForNextSentencePrediction",
    "AutoModelForTextEncoding",
)
"""The Auto classes whose models read a text as a whole; decoders are not among them."""


def hashed_config_class(config_class: Any) -> Any:
    """Return the config of a family's converted models: the same fields, and `hashee` for the exit tables."""
    members = {
        "model_type": PREFIX + config_class.model_type,
        "hashee": None,
        "__annotations__": {"hashee": "dict | None"},
    }
    return _published(f"Hashee{config_class.__name__}", (config_class,), members)


def hashed_class(dense_class: Any) -> Any:
    """Return the class with exits for a Hugging Face model class."""
    adapter = _adapter_of_class(dense_class)
    mixin: type = HashedModel
    if dense_class is adapter.encoder_class:
        mixin = HashedEncoder if adapter.token_types else HashedEncoderWithoutTypes
    members = {
        "adapter": adapter,
        "config_class": hashed_config_class(adapter.config_class),
        "__doc__": f"{dense_class.__name__} in which every token is updated up to its exit layer only.",
    }
    return _published(f"Hashee{dense_class.__name__}", (mixin, dense_class), members)


def register_families() -> None:
    """Teach AutoConfig, AutoTokenizer and AutoModelFor... the converted models of every family."""
    for adapter in ADAPTERS.values():
        config_class = hashed_config_class(adapter.config_class)
        tokenizers = tokenization_auto.TOKENIZER_MAPPING.get(adapter.config_class, None)
        if tokenizers is not None:
            AutoTokenizer.register(config_class, tokenizers, exist_ok=True)
        for name in AUTO_CLASSES:
            auto_class = getattr(transformers, name)
            dense = auto_class._model_mapping.get(adapter.config_class, None)
            if dense is not None:
                auto_class.register(config_class, hashed_class(dense), exist_ok=True)
    # Last, because another thread that reads a config must find its model registered.
    for adapter in ADAPTERS.values():
        config_class = hashed_config_class(adapter.config_class)
        AutoConfig.register(config_class.model_type, config_class, exist_ok=True)


def _adapter_of_class(dense_class: Any) -> Adapter:
    config_class = dense_class.config_class
    if config_class is None:
        raise UnsupportedModel(f"{dense_class.__name__} has no config class, so its family is unknown")
    return adapter_for(config_class)


def _published(name: str, bases: tuple[type, ...], members: dict[str, Any]) -> Any:
    """Return a class of this module, made the first time; as an attribute it can be imported and pickled by name."""
    module = sys.modules[__name__]
    if not hasattr(module, name):
        setattr(module, name, type(bases[-1])(name, bases, {**members, "__module__": __name__}))
    return getattr(module, name)
