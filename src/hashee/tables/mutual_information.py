"""Tokens with the most mutual information with the label exit first."""

import math
import os
from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hashee.data.texts import Label, PathLike, Text, read_labelled
from hashee.errors import InputError, TableError
from hashee.tables.buckets import Buckets, whole_number
from hashee.tables.counting import TokenCounts, count_tokens, counts_of
from hashee.tables.draft import Draft, draft_of_ranking
from hashee.tables.vocabulary import Vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Equal information must tie on every machine, although sums of logarithms differ in their last bits.
_DECIMALS = 12


def draft(
    tokenizer: "PreTrainedTokenizerBase",
    texts: Iterable[Text] | PathLike | TokenCounts,
    labels: Iterable[Label] | None,
    buckets: Buckets,
    *,
    num_bins: int,
    vocab_size: int | None,
    progress: bool,
) -> Draft:
    """Build the table of `ExitTable.by_mutual_information`."""
    vocabulary = Vocabulary.of(tokenizer, vocab_size)
    binning = {}
    if isinstance(texts, TokenCounts):
        if labels is not None:
            raise InputError("counts hold their labels already; pass labels=None, or texts instead of counts")
        counts = counts_of(tokenizer, texts)
    else:
        texts, labels = _texts_and_labels(texts, labels)
        if any(isinstance(label, float) for label in labels):
            binning = {"num_bins": num_bins}
            labels = quantile_classes(labels, num_bins)
        # What is neither int nor str by now, counting refuses with its index.
        counts = count_tokens(tokenizer, texts, labels, progress=progress)  # type: ignore[arg-type]
    ranking = rank_by_mutual_information(counts)
    num_classes = len(counts.classes or ())
    return draft_of_ranking(
        "mutual_information", ranking, counts, buckets, vocabulary, num_classes=num_classes, **binning
    )


def _texts_and_labels(
    texts: Iterable[Text] | PathLike, labels: Iterable[Label] | None
) -> tuple[Iterable[Text] | PathLike, list[Label]]:
    """Hold all labels, because quantiles need them before the first text is counted; texts stay a stream."""
    if labels is not None:
        return texts, [_as_plain(label) for label in labels]
    if not isinstance(texts, str | os.PathLike):
        raise InputError(
            "labels=None needs a file that holds them, or counts made with labels; pass one label per text"
        )
    return (text for text, _ in read_labelled(texts)), [label for _, label in read_labelled(texts)]


def _as_plain(label: Any) -> Any:
    """Return the Python value of a numpy or torch scalar."""
    return label.item() if getattr(label, "ndim", None) == 0 else label


def rank_by_mutual_information(counts: TokenCounts) -> NDArray[np.int64]:
    """Return the ids of all tokens seen, most informative first, ties by id. (seen,)"""
    seen = np.flatnonzero(counts.occurrences)
    information = mutual_information(counts)[seen].round(_DECIMALS)
    ranking: NDArray[np.int64] = seen[np.argsort(-information, kind="stable")]
    return ranking


def mutual_information(counts: TokenCounts) -> NDArray[np.float64]:
    """Return the mutual information, in nats, between "the token occurs in the text" and the label. (vocab,)"""
    if counts.texts_with is None or counts.texts_per_class is None:
        raise TableError("mutual information needs labels; count with count_tokens(tokenizer, texts, labels)")
    if len(counts.texts_per_class) < 2:
        raise TableError(f"all labels are {counts.classes}; mutual information needs at least two different ones")
    total = counts.num_texts
    class_share = counts.texts_per_class / total
    token_share = counts.texts_with.sum(axis=0) / total
    information = np.zeros(len(token_share))
    # One class at a time, so that only (vocab,) floats are held and not (classes, vocab).
    for row, share, texts in zip(counts.texts_with, class_share, counts.texts_per_class, strict=True):
        information += _term(row / total, token_share * share)
        information += _term((texts - row) / total, (1 - token_share) * share)
    return information


def _term(joint: NDArray[np.float64], independent: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return joint * log(joint / independent), and 0 where the joint probability is 0."""
    ratio = np.divide(joint, independent, out=np.ones_like(joint), where=joint > 0)
    return joint * np.log(ratio)


def quantile_classes(scores: Iterable[Label], num_bins: int = 10) -> list[str]:
    """Cut scores into at most `num_bins` classes with about equally many texts; equal scores stay together.

    Scores with no more than `num_bins` different values are not cut: each value is a class. A class is named
    after the interval it covers, so that shards binned alike can be merged.
    """
    whole_number("num_bins", num_bins, at_least=2)
    values = np.array([_as_score(score, index) for index, score in enumerate(scores)])
    distinct = np.unique(values)
    if len(distinct) <= num_bins:
        return [f"{value!r}" for value in values.tolist()]
    edges = np.unique(np.quantile(values, np.linspace(0, 1, num_bins + 1)[1:-1]))
    bounds = [-math.inf, *edges.tolist(), math.inf]
    names = [f"({low!r}, {high!r}]" for low, high in pairwise(bounds)]
    return [names[bin_] for bin_ in np.searchsorted(edges, values, side="left")]


def _as_score(score: object, index: int) -> float:
    if isinstance(score, int | float) and math.isfinite(score):
        return float(score)
    raise InputError(f"label {index} is {score!r}, but other labels are floats: all must be finite numbers")
