"""Frequent tokens exit first: they are most of every text."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hashee.data.texts import PathLike, Text
from hashee.tables.buckets import Buckets
from hashee.tables.counting import TokenCounts, counts_of
from hashee.tables.draft import Draft, draft_of_ranking
from hashee.tables.vocabulary import Vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def draft(
    tokenizer: "PreTrainedTokenizerBase",
    texts: Iterable[Text] | PathLike | TokenCounts,
    buckets: Buckets,
    vocab_size: int | None,
    progress: bool,
) -> Draft:
    """Build the table of `ExitTable.by_frequency`."""
    vocabulary = Vocabulary.of(tokenizer, vocab_size)
    counts = counts_of(tokenizer, texts, progress=progress)
    return draft_of_ranking("frequency", rank_by_frequency(counts), counts, buckets, vocabulary)


def rank_by_frequency(counts: TokenCounts) -> NDArray[np.int64]:
    """Return the ids of all tokens seen, most frequent first, ties by id. (seen,)"""
    # A stable sort of the negated counts leaves equally frequent ids in ascending order.
    order = np.argsort(-counts.occurrences, kind="stable")
    return order[: np.count_nonzero(counts.occurrences)]
