"""Exit layers given by the user, token by token."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hashee.data.texts import PathLike, read_rows
from hashee.errors import TableError
from hashee.tables.buckets import MOST_LAYERS, whole_number
from hashee.tables.draft import Draft
from hashee.tables.vocabulary import Vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Entry:
    """One token and its layer; `location` opens error messages: the line that it was read from."""

    token: str
    layer: int
    location: str = ""


def draft(
    method: str,
    tokenizer: "PreTrainedTokenizerBase",
    entries: Iterable[Entry],
    *,
    num_layers: int,
    default: int | None,
    vocab_size: int | None,
) -> Draft:
    """Build the table of `ExitTable.from_mapping` or `ExitTable.from_csv`."""
    whole_number("num_layers", num_layers, 1, MOST_LAYERS)
    default = num_layers if default is None else whole_number("default", default, at_least=0)
    if default > num_layers:
        raise TableError(f"default={default} is beyond the last layer; use a layer from 0 to {num_layers}")
    vocabulary = Vocabulary.of(tokenizer, vocab_size)
    exit_layers = layers_of_entries(tokenizer, entries, vocabulary, num_layers, default)
    settings = {"default": default}
    return Draft(exit_layers, num_layers, method, settings, tokenizer_fingerprint=vocabulary.fingerprint)


def entries_of_mapping(mapping: Mapping[str, int]) -> Iterator[Entry]:
    """Turn a mapping into entries."""
    for token, layer in mapping.items():
        yield Entry(token, whole_number(f"the exit layer of {token!r}", layer, at_least=0))


def entries_of_file(path: PathLike) -> Iterator[Entry]:
    """Stream the entries of a file (`.csv`, `.tsv`, ...) with the columns `token` and `layer`."""
    seen: dict[str, int] = {}
    for line, (token, layer) in read_rows(path, lambda columns: _token_and_layer(path, columns)):
        location = f"{path}, line {line}: "
        if token in seen:
            raise TableError(f"{location}token {token!r} has a layer since line {seen[token]}; keep one of the two")
        seen[token] = line
        try:
            yield Entry(token, int(layer), location)
        except (ValueError, TypeError):
            raise TableError(f"{location}the layer of {token!r} is {layer!r}; it must be a whole number") from None


def layers_of_entries(
    tokenizer: "PreTrainedTokenizerBase",
    entries: Iterable[Entry],
    vocabulary: Vocabulary,
    num_layers: int,
    default: int,
) -> NDArray[np.int64]:
    """Give each entry's token its layer, special tokens and spare ids the last one, all others `default`. (vocab,)"""
    ids = tokenizer.get_vocab()
    special = set(vocabulary.special_ids)
    exit_layers = np.full(vocabulary.size, num_layers, dtype=np.int64)
    exit_layers[[token_id for token_id in ids.values() if token_id not in special]] = default
    for entry in entries:
        if entry.token not in ids:
            raise TableError(
                f"{entry.location}the tokenizer has no token {entry.token!r}; "
                f"look tokens up with tokenizer.tokenize(text)"
            )
        if not 0 <= entry.layer <= num_layers:
            raise TableError(
                f"{entry.location}token {entry.token!r} exits at layer {entry.layer}; "
                f"use a layer from 0 to {num_layers}"
            )
        if ids[entry.token] in special and entry.layer != num_layers:
            raise TableError(
                f"{entry.location}special token {entry.token!r} must exit at the last layer ({num_layers}), "
                f"not {entry.layer}; leave it out, or set it on purpose with ExitTable.from_tensor"
            )
        exit_layers[ids[entry.token]] = entry.layer
    return exit_layers


def _token_and_layer(path: PathLike, columns: Sequence[str]) -> tuple[str, str]:
    if "token" not in columns or "layer" not in columns:
        raise TableError(f"{path} needs a header with the columns token and layer; it has: {', '.join(columns)}")
    return "token", "layer"
