"""Counting tokens over a corpus that need not fit in memory."""

import hashlib
import os
from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm  # type: ignore[import-untyped]

from hashee.data.texts import PathLike, Text, read_texts
from hashee.data.tokenizing import Encode, encoder_of
from hashee.errors import InputError, TableError, TableMismatch
from hashee.tables.storage import Storage
from hashee.tables.vocabulary import Vocabulary, extends

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Class: TypeAlias = int | str
Counts: TypeAlias = NDArray[np.int64]

_STORAGE = Storage("token_counts", "token counts", version=1)
_HASH_RANGE = 1 << 256
# A batch ends at either limit. Encodings take some 200 bytes a token, so this is a few MB however long the texts.
_BATCH_CHARACTERS = 1 << 17
# Above this, one row of counts per class would take more than a gigabyte.
_MOST_CLASS_ENTRIES = 1 << 27


@dataclass(frozen=True)
class CorpusInfo:
    """Which corpus a table was built from; the fingerprint does not depend on the order of the texts."""

    num_texts: int
    num_tokens: int
    fingerprint: str


@dataclass(frozen=True, eq=False)
class TokenCounts:
    """How often each token occurs in a corpus and, for labelled corpora, in how many texts of each class.

    occurrences: (vocab,) how often each token id occurs.
    num_texts: texts (pairs count once), empty ones included.
    corpus_fingerprint: sum of the SHA-256 of each text (and label), so that shards add up in any order.
    tokenizer_fingerprint: whose ids these are.
    classes: the label of each row of `texts_with`, sorted; None for an unlabelled corpus.
    texts_per_class: (classes,). texts_with: (classes, vocab) texts of the class that contain the token.
    """

    occurrences: Counts
    num_texts: int
    corpus_fingerprint: str
    tokenizer_fingerprint: str
    classes: tuple[Class, ...] | None = None
    texts_per_class: Counts | None = None
    texts_with: Counts | None = None

    def __post_init__(self) -> None:
        for array in self._arrays().values():
            array.setflags(write=False)

    @property
    def num_tokens(self) -> int:
        """Occurrences of all tokens together."""
        return int(self.occurrences.sum())

    @property
    def corpus(self) -> CorpusInfo:
        """The corpus, without the counts."""
        return CorpusInfo(self.num_texts, self.num_tokens, self.corpus_fingerprint)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TokenCounts):
            return NotImplemented
        mine, theirs = self._arrays(), other._arrays()
        return (
            self._metadata() == other._metadata()
            and mine.keys() == theirs.keys()
            and all(np.array_equal(mine[name], theirs[name]) for name in mine)
        )

    __hash__ = None  # type: ignore[assignment]

    def __add__(self, other: "TokenCounts") -> "TokenCounts":
        return TokenCounts.merge([self, other])

    @classmethod
    def merge(cls, shards: Iterable["TokenCounts"]) -> "TokenCounts":
        """Return the counts of all shards together, as if they had been counted in one go."""
        shards = list(shards)
        if not shards:
            raise TableError("no token counts to merge; pass at least one shard")
        first = shards[0]
        for number, shard in enumerate(shards):
            if shard.tokenizer_fingerprint != first.tokenizer_fingerprint:
                raise TableMismatch(f"shard {number} was counted with another tokenizer than shard 0; count it again")
            if (shard.classes is None) != (first.classes is None):
                raise TableError(f"of shards 0 and {number} only one has labels; count both with or both without")
        fingerprint = sum(int(shard.corpus_fingerprint, 16) for shard in shards) % _HASH_RANGE
        return cls(
            np.sum([shard.occurrences for shard in shards], axis=0),
            sum(shard.num_texts for shard in shards),
            _as_hex(fingerprint),
            first.tokenizer_fingerprint,
            *_merged_classes(shards),
        )

    def save(self, folder: PathLike) -> None:
        """Write `token_counts.safetensors` and `token_counts.json` into the folder."""
        _STORAGE.save(Path(folder), self._arrays(), self._metadata())

    @classmethod
    def load(cls, folder: PathLike) -> "TokenCounts":
        """Read what `save` wrote; damaged or foreign files are a TableError."""
        arrays, metadata = _STORAGE.load(Path(folder))
        try:
            return cls(
                arrays["occurrences"],
                metadata["num_texts"],
                metadata["corpus_fingerprint"],
                metadata["tokenizer_fingerprint"],
                None if metadata["classes"] is None else tuple(metadata["classes"]),
                arrays.get("texts_per_class"),
                arrays.get("texts_with"),
            )
        except (KeyError, TypeError) as error:
            raise TableError(f"the token counts in {folder} lack {error}; count again") from None

    def _arrays(self) -> dict[str, Counts]:
        arrays = {"occurrences": self.occurrences, "texts_per_class": self.texts_per_class}
        arrays["texts_with"] = self.texts_with
        return {name: array for name, array in arrays.items() if array is not None}

    def _metadata(self) -> dict[str, Any]:
        return {
            "num_texts": self.num_texts,
            "corpus_fingerprint": self.corpus_fingerprint,
            "tokenizer_fingerprint": self.tokenizer_fingerprint,
            "classes": None if self.classes is None else list(self.classes),
        }


def count_tokens(
    tokenizer: "PreTrainedTokenizerBase",
    texts: Iterable[Text] | PathLike,
    labels: Iterable[Class] | None = None,
    *,
    progress: bool = True,
    batch_size: int = 256,
) -> TokenCounts:
    """Count the tokens of a corpus in one pass, without special tokens and without truncation.

    texts: any iterable of strings or pairs of strings, or a file that `read_texts` understands.
    labels: one class per text (int or str); then texts per class and token are counted as well.
    progress: show a progress bar when standard error is a terminal.
    """
    if isinstance(texts, str | os.PathLike):
        texts = read_texts(texts)
    _check_lengths(texts, labels)
    vocabulary = Vocabulary.of(tokenizer)
    tally = _Tally(vocabulary.size, encoder_of(tokenizer), {} if labels is not None else None)
    total = len(texts) if isinstance(texts, Sized) else None
    with tqdm(total=total, desc="counting tokens", unit=" texts", disable=None if progress else True) as bar:
        for batch in _batches(_labelled(texts, labels), batch_size):
            tally.add(batch)
            bar.update(len(batch))
    if tally.num_texts == 0:
        raise TableError("the corpus is empty: there is not a single text to count tokens in")
    return tally.counts(vocabulary)


def counts_of(
    tokenizer: "PreTrainedTokenizerBase", texts: Iterable[Text] | PathLike | TokenCounts, *, progress: bool = True
) -> TokenCounts:
    """Count the tokens of texts, or check that counts made earlier belong to the tokenizer."""
    if not isinstance(texts, TokenCounts):
        return count_tokens(tokenizer, texts, progress=progress)
    if not extends(tokenizer, texts.tokenizer_fingerprint):
        raise TableMismatch("the counts were made with another tokenizer; count the texts again with this one")
    return texts


# --- the stream --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Example:
    """A text or the two texts of a pair, the class, and a hash of text and class."""

    parts: tuple[str, ...]
    label: Class | None
    digest: int


def _labelled(texts: Iterable[Text], labels: Iterable[Class] | None) -> Iterator[_Example]:
    """Pair each text with its label; refuse other types, and texts or labels that are left over."""
    remaining = None if labels is None else iter(labels)
    index = -1
    for index, text in enumerate(texts):
        label = None
        if remaining is not None:
            try:
                label = _as_class(next(remaining), index)
            except StopIteration:
                raise InputError(f"there are {index} labels but more texts; pass one label per text") from None
        parts = _as_parts(text, index)
        yield _Example(parts, label, _hash_of(parts, label, index))
    if remaining is not None and next(remaining, remaining) is not remaining:
        raise InputError(f"there are {index + 1} texts but more labels; pass one label per text")


def _batches(examples: Iterator[_Example], batch_size: int) -> Iterator[list[_Example]]:
    if batch_size < 1:
        raise InputError(f"batch_size={batch_size} must be at least 1")
    batch: list[_Example] = []
    characters = 0
    for example in examples:
        batch.append(example)
        characters += sum(map(len, example.parts))
        if len(batch) == batch_size or characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _check_lengths(texts: object, labels: object) -> None:
    # Fail before an hour of counting where the lengths are known.
    lengths = [len(items) for items in (texts, labels) if isinstance(items, Sized)]
    if len(lengths) == 2 and lengths[0] != lengths[1]:
        raise InputError(f"there are {lengths[0]} texts but {lengths[1]} labels; pass one label per text")


def _as_parts(text: object, index: int) -> tuple[str, ...]:
    if isinstance(text, str):
        return (text,)
    if isinstance(text, tuple | list) and len(text) == 2 and all(isinstance(part, str) for part in text):
        return tuple(text)
    raise InputError(f"text {index} is of type {type(text).__name__}; it must be a string or a pair of strings")


def _as_class(label: object, index: int) -> Class:
    if isinstance(label, int | np.integer | np.bool_):
        return int(label)
    if isinstance(label, str):
        return str(label)
    if isinstance(label, np.ndarray | torch.Tensor) and label.ndim == 0:
        return _as_class(label.item(), index)
    raise InputError(
        f"label {index} is {label!r} of type {type(label).__name__}; classes are int or str, "
        f"and scores become classes with hashee.tables.mutual_information.quantile_classes"
    )


def _hash_of(parts: tuple[str, ...], label: Class | None, index: int) -> int:
    digest = hashlib.sha256(b"" if label is None else repr(label).encode())
    for part in parts:
        try:
            encoded = part.encode()
        except UnicodeEncodeError:
            raise InputError(f"text {index} holds half of a surrogate pair, which is no valid character") from None
        # Lengths keep ("ab", "c") and ("a", "bc") apart.
        digest.update(b"%d " % len(encoded))
        digest.update(encoded)
    return int.from_bytes(digest.digest())


# --- adding up ---------------------------------------------------------------------------------------------


class _Tally:
    """Running totals of one pass over a corpus."""

    def __init__(self, vocab_size: int, encode: Encode, by_class: dict[Class, Counts] | None) -> None:
        self.encode = encode
        self.occurrences: Counts = np.zeros(vocab_size, dtype=np.int64)
        self.num_texts = 0
        self.fingerprint = 0
        self.by_class = by_class
        self.texts_per_class: dict[Class, int] = {}

    def add(self, batch: list[_Example]) -> None:
        """Tokenize and count one batch."""
        ids = self.encode([part for example in batch for part in example.parts])
        lengths = np.array([len(part_ids) for part_ids in ids])
        flat = np.fromiter((token_id for part_ids in ids for token_id in part_ids), np.int64, int(lengths.sum()))
        # Without minlength, a batch costs its own highest id, not the whole vocabulary.
        counts = np.bincount(flat)
        self.occurrences[: len(counts)] += counts
        self.num_texts += len(batch)
        self.fingerprint = (self.fingerprint + sum(example.digest for example in batch)) % _HASH_RANGE
        if self.by_class is not None:
            ends = np.cumsum(lengths)[np.array(list(accumulate(len(example.parts) for example in batch))) - 1]
            self._add_classes(batch, np.split(flat, ends[:-1]))

    def _add_classes(self, batch: list[_Example], ids_of_each: list[Counts]) -> None:
        assert self.by_class is not None
        for example, ids in zip(batch, ids_of_each, strict=True):
            label = example.label
            assert label is not None
            if label not in self.by_class:
                self._refuse_too_many_classes(len(self.by_class) + 1)
                self.by_class[label] = np.zeros_like(self.occurrences)
            # Adding at repeated indices counts once, which is what "occurs in the text" means.
            self.by_class[label][ids] += 1
            self.texts_per_class[label] = self.texts_per_class.get(label, 0) + 1

    def _refuse_too_many_classes(self, num_classes: int) -> None:
        if num_classes * len(self.occurrences) > _MOST_CLASS_ENTRIES:
            raise InputError(
                f"the labels have {num_classes} or more different values; "
                f"if they are scores, pass floats and they are binned into quantiles"
            )

    def counts(self, vocabulary: Vocabulary) -> TokenCounts:
        """Return the totals."""
        assert vocabulary.fingerprint is not None
        known = (self.occurrences, self.num_texts, _as_hex(self.fingerprint), vocabulary.fingerprint)
        if self.by_class is None:
            return TokenCounts(*known)
        classes = _sorted_classes(self.by_class)
        return TokenCounts(
            *known,
            classes,
            np.array([self.texts_per_class[label] for label in classes], dtype=np.int64),
            np.stack([self.by_class[label] for label in classes]),
        )


def _merged_classes(shards: list[TokenCounts]) -> tuple[tuple[Class, ...], Counts, Counts] | tuple[()]:
    if shards[0].classes is None:
        return ()
    classes = _sorted_classes({label for shard in shards for label in shard.classes or ()})
    row = {label: number for number, label in enumerate(classes)}
    texts_per_class = np.zeros(len(classes), dtype=np.int64)
    texts_with = np.zeros((len(classes), len(shards[0].occurrences)), dtype=np.int64)
    for shard in shards:
        assert shard.classes is not None and shard.texts_per_class is not None and shard.texts_with is not None
        rows = [row[label] for label in shard.classes]
        texts_per_class[rows] += shard.texts_per_class
        texts_with[rows] += shard.texts_with
    return classes, texts_per_class, texts_with


def _sorted_classes(classes: Iterable[Class]) -> tuple[Class, ...]:
    # Numbers before strings, so that mixed labels have an order too.
    return tuple(sorted(classes, key=lambda label: (isinstance(label, str), label)))


def _as_hex(fingerprint: int) -> str:
    return f"{fingerprint:064x}"
