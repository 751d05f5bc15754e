"""From a Hugging Face model and an exit table to the same model with exits."""

import copy
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from hashee.adapters import adapter_for
from hashee.errors import TableMismatch, UnsupportedModel
from hashee.families import hashed_class, hashed_config_class
from hashee.model import HashedModel, check_finite
from hashee.table import ExitTable


def convert(
    model: Any,
    table: ExitTable,
    tokenizer: Any = None,
    *,
    train_table: ExitTable | None = None,
) -> Any:
    """Return a model that keeps the first `table.num_layers` layers and lets every token exit by the table.

    The result is a Hugging Face model of the same architecture and head, and shares its parameters with `model`.
    With `train_table`, tokens exit by that table in `train()` and by `table` in `eval()`.
    """
    if isinstance(model, HashedModel):
        raise UnsupportedModel(f"{type(model).__name__} has exits already; convert the model it was made from")
    if not isinstance(model, PreTrainedModel):
        raise UnsupportedModel(
            f"{type(model).__name__} is not a transformers model; convert the model first, then wrap or quantize it"
        )
    adapter = adapter_for(model.config)
    if getattr(model.config, "is_decoder", False):
        raise UnsupportedModel(f"{type(model).__name__} is configured as a decoder; exits are for encoders")
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

    config_class = hashed_config_class(adapter.config_class)
    config = config_class.from_dict(copy.deepcopy(model.config.to_dict()) | {"model_type": config_class.model_type})
    config.architectures = None
    config.num_hidden_layers = table.num_layers
    config.hashee = {"source_layers": depth, "table": {}, "train_table": None if train_table is None else {}}
    with torch.device("meta"):
        converted = hashed_class(type(model))(config)
    share_tensors(model, converted)
    converted.install_tables(table, train_table)
    converted.train(model.training)
    if getattr(model, "generation_config", None) is not None:
        converted.generation_config = copy.deepcopy(model.generation_config)
    if tokenizer is not None:
        converted.use_tokenizer(tokenizer)
    return converted


def share_tensors(source: nn.Module, target: nn.Module) -> None:
    """Give `target` the very parameters and buffers of `source` that have the same names."""
    parameters = dict(source.named_parameters(remove_duplicate=False))
    buffers = dict(source.named_buffers(remove_duplicate=False))
    for name, _ in list(target.named_parameters(remove_duplicate=False)):
        owner, _, leaf = name.rpartition(".")
        target.get_submodule(owner).register_parameter(leaf, parameters[name])
    for name, _ in list(target.named_buffers(remove_duplicate=False)):
        owner, _, leaf = name.rpartition(".")
        if name in buffers:  # the exit tables are not
            target.get_submodule(owner)._buffers[leaf] = buffers[name]


def _fitted(table: ExitTable, vocab_size: int, depth: int, tokenizer: Any) -> ExitTable:
    """Check a table against model and tokenizer, and cover embedding rows that no token uses."""
    table.check(tokenizer=tokenizer, num_layers=depth)
    size = len(table.exit_layers)
    # Models often round their embedding matrix up; a table that covers a whole tokenizer covers all rows in use.
    if size < vocab_size and (tokenizer is not None or table.tokenizer_fingerprint is not None):
        return table.resized(vocab_size)
    table.check(vocab_size=vocab_size)
    return table
