"""From texts to token ids, as fast as the tokenizer can and without touching its settings."""

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from tokenizers import Tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

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
