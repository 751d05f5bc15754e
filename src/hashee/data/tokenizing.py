"""From texts to token ids, here and nowhere else: with special tokens for models, without them for counting."""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeAlias

from tokenizers import Tokenizer

from hashee.data.long_texts import LongTexts
from hashee.data.texts import text_columns
from hashee.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Encode: TypeAlias = Callable[[list[str]], list[Sequence[int]]]


@dataclass(frozen=True)
class TextTokenizer:
    """Tokenizes texts or pairs as a model reads them: with special tokens, truncated."""

    tokenizer: Any
    max_length: int | None = None
    """Tokens of a text at most, special ones included; None: texts are not truncated."""
    token_types: bool = False
    """Whether to return token types, for families that have them."""
    offsets: bool = False
    """Whether to return where each token begins and ends in its text; only fast tokenizers know."""
    special_tokens: bool = True
    """Whether special tokens are added, as models read them."""
    target: bool = False
    """Whether the texts are to be written by the model: some tokenizers (Marian's) cut those otherwise."""

    @classmethod
    def within(cls, tokenizer: Any, max_length: int, token_types: bool = False) -> "TextTokenizer":
        """Truncate at the model's `max_length` or the tokenizer's own, whichever is shorter."""
        return cls(tokenizer, min(max_length, tokenizer.model_max_length), token_types)

    def __call__(self, texts: Sequence[Any], first: int = 0) -> dict[str, list[Any]]:
        """Return `input_ids`, and `token_type_ids` and `offset_mapping` where wanted, each a list by text.

        first: the number of the first text, for messages.
        """
        offsets = {"return_offsets_mapping": True} if self.offsets else {}
        text, pair = self._columns(texts, first)
        read: dict[str, Any] = {"text_target": text} if self.target else {"text": text, "text_pair": pair}
        return dict(
            self.tokenizer(
                **read,
                truncation=self.max_length is not None,
                max_length=self.max_length,
                add_special_tokens=self.special_tokens,
                return_attention_mask=False,
                # Some tokenizers (ALBERT's) leave the types out even where the model was trained with them.
                return_token_type_ids=self.token_types,
                verbose=False,
                **offsets,
            )
        )

    def _columns(self, texts: Sequence[Any], first: int = 0) -> tuple[list[str], list[str] | None]:
        """Return texts, and the seconds of pairs, without what is far beyond `max_length`."""
        text, pair = text_columns(texts, first)
        if self.max_length is None:
            return text, pair
        side = getattr(self.tokenizer, "truncation_side", "right")
        return LongTexts(self._tokens_of, self.max_length, from_left=side == "left").cut(text, pair)

    def _tokens_of(self, text: str) -> tuple[int, Sequence[tuple[int, int]] | None]:
        """Return how many tokens a text has, without special ones, and where they are if the tokenizer knows."""
        is_fast = bool(getattr(self.tokenizer, "is_fast", False))
        whole = replace(self, max_length=None, token_types=False, offsets=is_fast, special_tokens=False)
        columns = whole([text])
        return len(columns["input_ids"][0]), columns["offset_mapping"][0] if is_fast else None

    def truncated(self, texts: Sequence[Any], rows: Sequence[Sequence[int]]) -> list[bool]:
        """Tell which texts are longer than their ids, as this tokenizer returned them."""
        most = self.max_length
        full = [number for number, row in enumerate(rows) if most is not None and len(row) >= most]
        if not full:
            return [False] * len(rows)
        # Of texts that are far longer a part is enough, as long as it is longer than their ids.
        text, pair = self._columns([texts[number] for number in full])
        whole = replace(self, max_length=None)(text if pair is None else [*zip(text, pair, strict=True)])["input_ids"]
        longer = {number for number, row in zip(full, whole, strict=True) if len(row) > len(rows[number])}
        return [number in longer for number in range(len(rows))]


def token_ids(texts_or_ids: Any, tokenizer: Any, max_length: int, batch_size: int = 512) -> Iterator[Sequence[int]]:
    """Yield the ids of each item: those of a text with special tokens and truncated, or the ids as they are."""
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
    tokenize = TextTokenizer.within(tokenizer, max_length)
    number = 0
    while batch := list(islice(items, batch_size)):
        yield from tokenize(batch, number)["input_ids"]
        number += len(batch)


def encoder_of(tokenizer: "PreTrainedTokenizerBase") -> Encode:
    """Return a function from texts to their ids, without special tokens, truncation or padding."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if isinstance(backend, Tokenizer):
        try:
            backend = copy.deepcopy(backend)
        except Exception:  # the binding raises a bare Exception for parts written in Python, which cannot be copied
            # Transformers sets truncation and padding in every call, so that the calls below have no lasting effect.
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
