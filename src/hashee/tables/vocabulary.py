"""What a table needs to know of a tokenizer: how many ids, which are special, and a fingerprint of them."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hashee.errors import TableError, TableMismatch

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Vocabulary:
    """The ids of a tokenizer: `size` of them, of which `special_ids` never exit early."""

    size: int
    special_ids: tuple[int, ...] = ()
    fingerprint: str | None = None

    @classmethod
    def of(cls, tokenizer_or_size: "PreTrainedTokenizerBase | int", vocab_size: int | None = None) -> "Vocabulary":
        """Read a tokenizer, or take a bare number of ids; `vocab_size` makes room for the model's spare rows."""
        if isinstance(tokenizer_or_size, int):
            vocabulary = cls(tokenizer_or_size)
        else:
            vocabulary = cls(
                vocabulary_size(tokenizer_or_size),
                special_ids(tokenizer_or_size),
                tokenizer_fingerprint(tokenizer_or_size),
            )
        if vocabulary.size < 1:
            raise TableError(f"the vocabulary has {vocabulary.size} tokens; a table needs at least one")
        return vocabulary if vocab_size is None else vocabulary.padded(vocab_size)

    def padded(self, vocab_size: int) -> "Vocabulary":
        """Return the same vocabulary with unused ids at the end."""
        if vocab_size < self.size:
            raise TableError(
                f"vocab_size={vocab_size} is smaller than the tokenizer's {self.size} tokens; "
                f"leave it out or pass the number of rows of the model's embedding matrix"
            )
        return Vocabulary(vocab_size, self.special_ids, self.fingerprint)


def vocabulary_size(tokenizer: "PreTrainedTokenizerBase") -> int:
    """Return the smallest size of a table that every id of the tokenizer can index."""
    # Some vocabularies skip ids, and then the highest id lies beyond the number of tokens.
    return max(len(tokenizer), max(tokenizer.get_vocab().values(), default=-1) + 1)


def special_ids(tokenizer: "PreTrainedTokenizerBase") -> tuple[int, ...]:
    """Return the ids of all special tokens, named (CLS, SEP, ...) or merely added as special, in order."""
    named = (token_id for token_id in tokenizer.all_special_ids if token_id is not None)
    added = (token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special)
    return tuple(sorted({*named, *added}))


def tokenizer_fingerprint(tokenizer: "PreTrainedTokenizerBase") -> str:
    """Return the SHA-256 of the (id, token) pairs in id order, whatever the truncation and padding settings."""
    digest = hashlib.sha256()
    for entry in _entries(tokenizer):
        digest.update(entry)
    return digest.hexdigest()


def extends(tokenizer: "PreTrainedTokenizerBase", fingerprint: str) -> bool:
    """Tell whether the tokenizer has this fingerprint, or had it before tokens were added at the end."""
    digest = hashlib.sha256()
    for entry in _entries(tokenizer):
        digest.update(entry)
        if digest.hexdigest() == fingerprint:
            return True
    return False


def _entries(tokenizer: "PreTrainedTokenizerBase") -> Iterator[bytes]:
    for token, token_id in sorted(tokenizer.get_vocab().items(), key=lambda pair: (pair[1], pair[0])):
        # The length keeps a token that contains a line break from posing as two.
        yield f"{token_id} {len(token)} {token}\n".encode("utf-8", "surrogatepass")


def check_tokenizer(tokenizer: "PreTrainedTokenizerBase", size: int, fingerprint: str | None, num_layers: int) -> None:
    """Raise unless a table of so many ids, made for the tokenizer with that fingerprint, covers this tokenizer."""
    tokens = vocabulary_size(tokenizer)
    related = fingerprint is not None and extends(tokenizer, fingerprint)
    rebuild = f"rebuild it with ExitTable.by_frequency(tokenizer, texts, num_layers={num_layers})"
    if tokens > size:
        remedy = f"tokens were added, so use table.resized({tokens})" if related else rebuild
        raise TableMismatch(f"the table covers {size} tokens but the tokenizer has {tokens}; {remedy}")
    if fingerprint is not None and not related:
        raise TableMismatch(
            f"the table was made for another tokenizer (its {size} ids stand for other tokens, "
            f"fingerprint {fingerprint[:12]}); {rebuild}"
        )
