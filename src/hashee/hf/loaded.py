"""What is checked and mended in a converted model after it was loaded or its vocabulary was resized."""

import logging
from typing import Any

from hashee.engine.adapter import name_of_own_class
from hashee.errors import CheckpointError
from hashee.hf.weights import Required, check_weights
from hashee.tables.table import ExitTable

log = logging.getLogger(__name__)


def check_loaded(model: Any, info: dict[str, Any], source: Any) -> None:
    """Raise if a loaded model lacks weights or holds values that are not finite, and fill tables of new vocabularies.

    Under another head than it was saved with, a model gets a new head and pooler, as transformers does and reports.
    """
    own_class = model.config.hashee.get("model_class")
    if own_class not in (None, name_of_own_class(model.dense_class)):
        raise CheckpointError(
            f"{source} was converted from a {own_class}, which may differ from {model.dense_class.__name__}; "
            "open it with hashee.hf.classes.hashed_class(your class).from_pretrained"
        )
    other_head = (model.config.architectures or [None])[0] != type(model).__name__
    required = Required(new_head=other_head, other_sizes=True, what="weights that the model needs")
    check_weights(model, source, info, required)
    if any(row[0].endswith("exit_layers") for row in info["mismatched_keys"]):
        _send_all_to_the_last_layer(model, source)
    # Putting the tables together compares them with the fingerprints in the config.
    _ = model.exit_table, model.train_exit_table, model.decoder_exit_table


def _send_all_to_the_last_layer(model: Any, source: Any) -> None:
    """Give a model whose vocabulary is not the checkpoint's a table by which nothing exits."""
    embeddings: Any = model.get_input_embeddings()
    log.warning(
        "the exit table in %s is for another vocabulary than the %d tokens that were asked for: all of them go to the "
        "last layer until install_tables gives them exits",
        *(source, embeddings.num_embeddings),
    )
    settings, never, of_decoder = model.config.hashee, None, None
    if settings["table"] is not None:
        never = ExitTable.never(embeddings.num_embeddings, model.adapter.shape(model.config).layers)
    if (decoder := model.hashed_decoder) is not None:
        of_decoder = ExitTable.never(decoder.embed_tokens.num_embeddings, len(decoder.layers))
    model.install_tables(never, None if settings["train_table"] is None else never, of_decoder)


def install_resized(model: Any, size: int) -> None:
    """Fit the tables of a model whose vocabulary has another size now; new tokens go to the last layer."""
    table = None if model.config.hashee["table"] is None else model.exit_table.resized(size)
    train_table, of_decoder = model.train_exit_table, model.decoder_exit_table
    if of_decoder is not None:
        # Some decoders have a vocabulary of their own.
        of_decoder = of_decoder.resized(model.hashed_decoder.embed_tokens.num_embeddings)
    model.install_tables(table, None if train_table is None else train_table.resized(size), of_decoder)
