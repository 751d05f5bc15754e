"""From a Hugging Face model and an exit table to the same model with exits."""

import copy
from typing import Any

import torch
from transformers import PreTrainedModel

from hashee.engine.adapter import name_of_own_class
from hashee.engine.structure import check_structure, share_tensors
from hashee.errors import TableMismatch, UnsupportedModel, first_line
from hashee.families.adapters import adapter_for
from hashee.hf.classes import hashed_class, hashed_config_class
from hashee.hf.model import HashedEncoder, HashedModel, pooling_of
from hashee.hf.sentence_models import is_sentence_model, transformer_inside, with_transformer
from hashee.hf.weights import check_finite
from hashee.tables.table import ExitTable


def convert(
    model: Any,
    table: ExitTable,
    tokenizer: Any = None,
    *,
    train_table: ExitTable | None = None,
) -> Any:
    """Return a model that keeps the first `table.num_layers` layers and lets every token exit by the table.

    The result is a Hugging Face model of the same architecture and head, and shares its parameters with `model`. A
    SentenceTransformer or CrossEncoder is taken too, and one of the same kind is returned.
    With `train_table`, tokens exit by that table in `train()` and by `table` in `eval()`.
    """
    if is_sentence_model(model):
        inner = transformer_inside(model)
        tokenizer = model.tokenizer if tokenizer is None else tokenizer
        return with_transformer(model, inner, convert(inner, table, tokenizer, train_table=train_table))
    _check_convertible(model)
    adapter = adapter_for(model.config)
    check_finite(model, "the model")
    depth = adapter.shape(model.config).layers
    embeddings: Any = model.get_input_embeddings()
    vocab_size = embeddings.num_embeddings
    table = _fitted(table, vocab_size, depth, tokenizer)
    if train_table is not None:
        train_table = _fitted(train_table, vocab_size, table.num_layers, tokenizer)
        if train_table.num_layers != table.num_layers:
            raise TableMismatch(
                f"train_table has {train_table.num_layers} layers but table has {table.num_layers}; give them one depth"
            )

    config_class = hashed_config_class(type(model.config))
    config = config_class.from_dict(copy.deepcopy(model.config.to_dict()) | {"model_type": config_class.model_type})
    config.architectures = None
    adapter.keep_first_layers(config, table.num_layers)
    config.hashee = {"source_layers": depth, "table": {}, "train_table": None if train_table is None else {}}
    if (own_class := name_of_own_class(type(model))) is not None:
        config.hashee["model_class"] = own_class
    converted = _built(model, config)
    share_tensors(model, converted)
    converted.install_tables(table, train_table)
    if model.is_gradient_checkpointing:
        converted.gradient_checkpointing_enable()
    if getattr(model, "generation_config", None) is not None:
        converted.generation_config = copy.deepcopy(model.generation_config)
    if tokenizer is not None:
        converted.use_tokenizer(tokenizer)
    return converted


def _check_convertible(model: Any) -> None:
    if isinstance(model, HashedModel):
        raise UnsupportedModel(f"{type(model).__name__} has exits already; convert the model it was made from")
    if not isinstance(model, PreTrainedModel):
        raise UnsupportedModel(
            f"{type(model).__name__} is not a transformers model; convert the model first, then wrap or quantize it"
        )
    if getattr(model.config, "is_decoder", False):
        raise UnsupportedModel(f"{type(model).__name__} is configured as a decoder; exits are for encoders")


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
