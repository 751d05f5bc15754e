"""From a Hugging Face model and an exit table to the same model with exits."""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from hashee.engine.adapter import name_of_own_class
from hashee.engine.structure import check_structure, share_tensors
from hashee.errors import TableMismatch, UnsupportedModel, first_line
from hashee.families.adapters import ADAPTERS, DECODERS, adapter_for, decoder_adapter_for, family_of
from hashee.hf.classes import hashed_class, hashed_config_class
from hashee.hf.model import HashedEncoder, HashedModel, pooling_of
from hashee.hf.sentence_models import is_sentence_model, transformer_inside, with_transformer
from hashee.hf.weights import check_finite
from hashee.tables.table import ExitTable


def convert(
    model: Any,
    table: ExitTable | None = None,
    tokenizer: Any = None,
    *,
    train_table: ExitTable | None = None,
    decoder_table: ExitTable | None = None,
) -> Any:
    """Return a model that keeps the first `table.num_layers` layers and lets every token exit by the table.

    The result is a Hugging Face model of the same architecture and head, and shares its parameters with `model`. A
    SentenceTransformer or CrossEncoder is taken too, and one of the same kind is returned.
    With `train_table`, tokens exit by that table in `train()` and by `table` in `eval()`.
    With `decoder_table`, tokens exit in the decoder as well, whose first `decoder_table.num_layers` layers are kept: a
    position is updated up to the exit layer of the token that the decoder reads there. Without `table`, the encoder
    then runs at full depth. A model that only decodes (Llama) has one table, which may be given as either.
    """
    if is_sentence_model(model):
        inner = transformer_inside(model)
        tokenizer = model.tokenizer if tokenizer is None else tokenizer
        with_exits = convert(inner, table, tokenizer, train_table=train_table, decoder_table=decoder_table)
        return with_transformer(model, inner, with_exits)
    _check_convertible(model)
    check_finite(model, "the model")
    tables = _fitted_tables(model, _Tables(table, train_table, decoder_table), tokenizer)

    config_class = hashed_config_class(type(model.config))
    config = config_class.from_dict(copy.deepcopy(model.config.to_dict()) | {"model_type": config_class.model_type})
    config.architectures = None
    config.hashee = {"table": None, "train_table": None if tables.training is None else {}}
    if tables.encoder is not None:
        adapter = adapter_for(model.config)
        adapter.keep_first_layers(config, tables.encoder.num_layers)
        config.hashee |= {"source_layers": adapter.shape(model.config).layers, "table": {}}
    if tables.decoder is not None:
        decoder_adapter_for(model.config).keep_first_layers(config, tables.decoder.num_layers)  # type: ignore[union-attr]
        config.hashee["decoder_table"] = {}
    if issubclass(hashed_class(type(model)), HashedEncoder) and not pooling_of(model).get("add_pooling_layer", True):
        config.hashee["pooler"] = False
    if (own_class := name_of_own_class(type(model))) is not None:
        config.hashee["model_class"] = own_class
    converted = _built(model, config)
    share_tensors(model, converted)
    converted.install_tables(tables.encoder, tables.training, tables.decoder)
    if model.is_gradient_checkpointing:
        converted.gradient_checkpointing_enable()
    if getattr(model, "generation_config", None) is not None:
        converted.generation_config = copy.deepcopy(model.generation_config)
    if tokenizer is not None:
        converted.use_tokenizer(tokenizer)
    return converted


@dataclass(frozen=True)
class _Tables:
    """The tables of a model; None where it has none."""

    encoder: ExitTable | None
    training: ExitTable | None
    """Of the encoder in `train()`, if that is another one."""
    decoder: ExitTable | None


def _fitted_tables(model: Any, given: _Tables, tokenizer: Any) -> _Tables:
    """Check tables against a model and its tokenizer, and let them cover embedding rows that no token uses."""
    decoder_adapter = decoder_adapter_for(model.config)
    if family_of(model.config) not in ADAPTERS:
        if (given.encoder is None) == (given.decoder is None) or given.training is not None:
            raise TableMismatch(f"{type(model).__name__} only decodes, so it takes one table, its decoder_table")
        given = _Tables(None, None, given.encoder or given.decoder)
    decoder = None
    if given.decoder is not None:
        found = None if decoder_adapter is None else decoder_adapter.decoder_in(model)
        if decoder_adapter is None or found is None:
            covered = ", ".join(sorted(DECODERS))
            raise UnsupportedModel(f"{type(model).__name__} has no decoder that exits are for; they are for {covered}")
        inner: Any = found[1]
        size, depth = inner.get_input_embeddings().num_embeddings, decoder_adapter.shape(model.config).layers
        decoder = _fitted(given.decoder, size, depth, tokenizer)
    if family_of(model.config) not in ADAPTERS:
        return _Tables(None, None, decoder)
    depth, size = adapter_for(model.config).shape(model.config).layers, model.get_input_embeddings().num_embeddings
    if given.encoder is None and decoder is None:
        raise TableMismatch("convert needs an exit table; give one as table or decoder_table")
    table = ExitTable.never(size, depth) if given.encoder is None else _fitted(given.encoder, size, depth, tokenizer)
    training = given.training
    if training is not None:
        training = _fitted(training, size, table.num_layers, tokenizer)
        if training.num_layers != table.num_layers:
            raise TableMismatch(
                f"train_table has {training.num_layers} layers but table has {table.num_layers}; give them one depth"
            )
    return _Tables(table, training, decoder)


def _check_convertible(model: Any) -> None:
    if isinstance(model, HashedModel):
        raise UnsupportedModel(f"{type(model).__name__} has exits already; convert the model it was made from")
    if not isinstance(model, PreTrainedModel):
        raise UnsupportedModel(
            f"{type(model).__name__} is not a transformers model; convert the model first, then wrap or quantize it"
        )
    if getattr(model.config, "is_decoder", False):
        raise UnsupportedModel(
            f"{type(model).__name__} is an encoder's class configured as a decoder; exits are for encoders, for the "
            "decoders of seq2seq models, and for Llama"
        )


def _built(model: Any, config: Any) -> Any:
    """Return a model with exits of the same structure without any weights yet."""
    model_class = hashed_class(type(model))
    pooling = pooling_of(model) if issubclass(model_class, HashedEncoder) else {}
    try:
        with torch.device("meta"):
            converted = model_class(config, **pooling)
    except TypeError as error:
        raise UnsupportedModel(
            f"{type(model).__name__} cannot be made from its config alone ({first_line(error)}); let its constructor "
            "take the config and nothing else"
        ) from error
    check_structure(model, converted)
    return converted


def _fitted(table: ExitTable, vocab_size: int, depth: int, tokenizer: Any) -> ExitTable:
    """Check a table against model and tokenizer, and cover embedding rows that no token uses."""
    table.check(tokenizer=tokenizer, num_layers=depth)
    size = len(table.exit_layers)
    # Models often round their embedding matrix up; a table that covers a whole tokenizer covers all rows in use.
    if size < vocab_size and (tokenizer is not None or table.tokenizer_fingerprint is not None):
        return table.resized(vocab_size)
    table.check(vocab_size=vocab_size)
    return table
