"""From texts to token ids, to batches by what they cost, to padded arrays."""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from hashee.data.texts import text_columns
from hashee.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Integers = NDArray[np.int64]
Encode: TypeAlias = Callable[[list[str]], list[Sequence[int]]]


def encoder_of(tokenizer: "PreTrainedTokenizerBase") -> Encode:
    """Return a function from texts to their ids, without special tokens, truncation or padding."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if isinstance(backend, Tokenizer):
        try:
            backend = copy.deepcopy(backend)
        except Exception:  # the binding raises a bare Exception for parts written in Python, which cannot be copied
            # Transformers sets truncation and padding anew in every call, so what this leaves behind has no effect.
            return _through_transformers(tokenizer)
        backend.no_truncation()
        backend.no_padding()
        return _through_backend(backend)
    return _through_transformers(tokenizer)


def _through_backend(backend: Tokenizer) -> Encode:
    # The fast variant leaves out character offsets; older releases do not have it.
    encode_batch = getattr(backend, "encode_batch_fast", backend.encode_batch)

    def encode(texts: list[str]) -> list[Sequence[int]]:
        return [encoding.ids for encoding in encode_batch(texts, add_special_tokens=False)]

    return encode


def _through_transformers(tokenizer: "PreTrainedTokenizerBase") -> Encode:
    def encode(texts: list[str]) -> list[Sequence[int]]:
        encoded = tokenizer(
            texts,
            add_special_tokens=False,
            truncation=False,
            padding=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )
        ids: list[Sequence[int]] = encoded["input_ids"]
        return ids

    return encode


def token_ids(texts_or_ids: Any, tokenizer: Any, max_length: int, batch_size: int = 512) -> Iterator[Sequence[int]]:
    """Yield the ids of each item: tokenized with special tokens and cut at `max_length` if it is text."""
    items: Iterator[Any] = iter([texts_or_ids] if isinstance(texts_or_ids, str) else texts_or_ids)
    first = next(items, None)
    if first is None:
        return
    items = chain([first], items)
    if not isinstance(first, str) and not (isinstance(first, tuple | list) and first and isinstance(first[0], str)):
        yield from (ids.tolist() if hasattr(ids, "tolist") else ids for ids in items)
        return
    if tokenizer is None:
        raise InputError("texts need a tokenizer to be counted; pass tokenizer=..., or lists of token ids")
    length = min(max_length, tokenizer.model_max_length)
    number = 0
    while batch := list(islice(items, batch_size)):
        firsts, seconds = text_columns(batch, number)
        number += len(batch)
        yield from tokenizer(firsts, seconds, truncation=True, max_length=length, verbose=False)["input_ids"]


@dataclass(frozen=True)
class Batching:
    """How texts are grouped before they run.

    tokens: real tokens of a batch at the most; a longer text is a batch of its own.
    active: tokens that a batch should keep in the last layers, so that they still feed the processor; a batch grows up
    to four times `tokens` for it.
    window: texts that are read, sorted and answered together; memory is bounded by it, whatever the number of texts.
    """

    tokens: int = 2048
    active: int = 256
    window: int = 4096

    def __post_init__(self) -> None:
        if min(self.tokens, self.window) < 1 or self.active < 0:
            raise InputError(f"batches need at least one token and one text, not {self}")


def make_batches(ids: list[list[int]], exit_layers: Integers | None, batching: Batching) -> list[list[int]]:
    """Group texts of like length and cost; each batch lists the places of its texts.

    exit_layers: (vocabulary,) exit layer of every token id, if it is known.
    """
    lengths = np.array([len(row) for row in ids])
    # The cost of a text is known before it runs: its length, and how many of its tokens stay to the end.
    staying = lengths
    if exit_layers is not None:
        deepest = exit_layers.max()
        staying = np.array([int((exit_layers[row] == deepest).sum()) for row in ids])
    batches: list[list[int]] = []
    batch: list[int] = []
    tokens = active = 0
    # Longest first: whatever does not fit in memory fails at once, not after an hour.
    for place in np.lexsort((staying, lengths))[::-1].tolist():
        full = tokens + lengths[place] > batching.tokens and active >= batching.active
        if batch and (full or tokens + lengths[place] > 4 * batching.tokens):
            batches.append(batch)
            batch, tokens, active = [], 0, 0
        batch.append(place)
        tokens += int(lengths[place])
        active += int(staying[place])
    return [*batches, batch] if batch else batches


def padded(rows: list[list[int]], value: int) -> Integers:
    """Return lists of different lengths as one (rows, longest) array."""
    array = np.full((len(rows), max(map(len, rows))), value, dtype=np.int64)
    for number, row in enumerate(rows):
        array[number, : len(row)] = row
    return array
