"""Every token exits at a layer drawn at random: the baseline that any other table has to beat."""

import random
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hashee.tables.buckets import Buckets, whole_number
from hashee.tables.draft import Draft, draft_of_positions
from hashee.tables.vocabulary import Vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def draft(
    tokenizer_or_vocab_size: "PreTrainedTokenizerBase | int", buckets: Buckets, seed: int, vocab_size: int | None
) -> Draft:
    """Build the table of `ExitTable.at_random`."""
    seed = whole_number("seed", seed, at_least=0)
    vocabulary = Vocabulary.of(tokenizer_or_vocab_size)
    ids = np.arange(vocabulary.size)
    drawn = random_positions(vocabulary.size, seed)
    padded = vocabulary if vocab_size is None else vocabulary.padded(vocab_size)
    return draft_of_positions("random", ids, drawn, buckets, padded, seed=seed)


def random_positions(vocab_size: int, seed: int) -> NDArray[np.float64]:
    """Return a number from 0 to below 1 for each id; a longer vocabulary continues a shorter one. (vocab_size,)"""
    # Python promises the same stream of random() on every machine and in every version; numpy and torch do not.
    draw = random.Random(seed).random
    return np.fromiter((draw() for _ in range(vocab_size)), np.float64, vocab_size)
