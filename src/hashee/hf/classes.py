"""Classes with exits for every head of every family, made from Hugging Face's and registered with its Auto classes."""

import sys
from typing import Any

import transformers
from transformers import AutoConfig, AutoTokenizer
from transformers.models.auto import tokenization_auto

from hashee.engine.adapter import Adapter, is_library_class
from hashee.engine.decoder_adapter import DecoderAdapter
from hashee.errors import UnsupportedModel
from hashee.families import PREFIX
from hashee.families.adapters import ADAPTERS, DECODERS, family_of
from hashee.hf.decoder import HashedDecoder
from hashee.hf.model import HashedEncoder, HashedEncoderWithoutTypes, HashedModel

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
"""The Auto classes whose models read a text as a whole."""
DECODER_CLASSES = (*AUTO_CLASSES, "AutoModelForCausalLM")
"""The Auto classes of families that only decode."""


_FAMILIES: dict[str, Adapter | DecoderAdapter] = {**DECODERS, **ADAPTERS}
_CLASSES: dict[type, type] = {}
"""The class with exits of every class that one was made for; a class that is defined anew is another one."""


def hashed_config_class(config_class: Any) -> Any:
    """Return the config class of converted models: the same fields, and `hashee` for the exit tables."""
    members = {
        "model_type": PREFIX + family_of(config_class),
        "hashee": None,
        "__annotations__": {"hashee": "dict | None"},
        # transformers would copy the source of classes that it found through the opener of a folder.
        "register_for_auto_class": classmethod(lambda cls, auto_class="AutoConfig": None),
    }
    return _derived(config_class, (config_class,), members)


def hashed_class(dense_class: Any) -> Any:
    """Return the class with exits for a Hugging Face model class, or for one of your own that extends one."""
    adapter, decoder_adapter = _adapters_of_class(dense_class)
    mixin: type = HashedModel
    if adapter is not None and issubclass(dense_class, adapter.encoder_class):
        _check_forward(dense_class, adapter.encoder_class)
        mixin = HashedEncoder if adapter.token_types else HashedEncoderWithoutTypes
    elif decoder_adapter is not None and issubclass(dense_class, decoder_adapter.decoder_class):
        _check_forward(dense_class, decoder_adapter.decoder_class)
        mixin = HashedDecoder
    members = {
        "adapter": adapter,
        "decoder_adapter": decoder_adapter,
        "dense_class": dense_class,
        "class_with_exits": staticmethod(hashed_class),
        "new_instance": staticmethod(new_hashed),
        "config_class": hashed_config_class(dense_class.config_class),
        "__doc__": f"{dense_class.__name__} in which every token is updated up to its exit layer only.",
    }
    return _derived(dense_class, (mixin, dense_class), members)


def new_hashed(dense_class: Any) -> Any:
    """Return an instance of a class with exits without anything in it, to be filled from a pickle or a copy."""
    model_class = hashed_class(dense_class)
    return model_class.__new__(model_class)


def register_families() -> None:
    """Teach AutoConfig, AutoTokenizer and AutoModelFor... the converted models of every family."""
    for model_type, adapter in _FAMILIES.items():
        config_class = hashed_config_class(adapter.config_class)
        tokenizers = tokenization_auto.TOKENIZER_MAPPING.get(adapter.config_class, None)
        if tokenizers is not None:
            AutoTokenizer.register(config_class, tokenizers, exist_ok=True)
        for name in AUTO_CLASSES if model_type in ADAPTERS else DECODER_CLASSES:
            auto_class = getattr(transformers, name)
            dense = auto_class._model_mapping.get(adapter.config_class, None)
            if dense is not None:
                auto_class.register(config_class, hashed_class(dense), exist_ok=True)
    # Last, because another thread that reads a config must find its model registered.
    for adapter in _FAMILIES.values():
        config_class = hashed_config_class(adapter.config_class)
        AutoConfig.register(config_class.model_type, config_class, exist_ok=True)


def _check_forward(dense_class: Any, known: Any) -> None:
    """Refuse a class whose own forward pass would be replaced."""
    if dense_class.forward is not known.forward:
        raise UnsupportedModel(
            f"{dense_class.__name__} has a forward pass of its own, which exits would replace; hashee knows that "
            f"of {known.__name__}"
        )


def _adapters_of_class(dense_class: Any) -> tuple[Adapter | None, DecoderAdapter | None]:
    config_class = dense_class.config_class
    if config_class is None:
        raise UnsupportedModel(f"{dense_class.__name__} has no config class, so its family is unknown")
    model_type = family_of(config_class)
    return ADAPTERS.get(model_type), DECODERS.get(model_type)


def _derived(source: type, bases: tuple[type, ...], members: dict[str, Any]) -> Any:
    """Return the class that is made of another one, once for each class object."""
    if source not in _CLASSES:
        name = f"Hashee{source.__name__}"
        # Classes of transformers can be imported from here by name; those of others are found through theirs.
        is_public = is_library_class(source)
        module = __name__ if is_public else source.__module__
        made = type(source)(name, bases, {**members, "__module__": module})
        # Two threads may have made one each: the first one counts.
        made = _CLASSES.setdefault(source, made)
        if is_public:
            setattr(sys.modules[__name__], name, made)
    return _CLASSES[source]
