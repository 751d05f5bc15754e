"""Random tables are drawn evenly, and the same from the same seed."""

import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

from hashee.errors import TableError
from hashee.tables.at_random import random_positions
from hashee.tables.table import ExitTable


def test_the_draws_of_a_seed_never_change() -> None:
    # A table that is drawn again must be the table a model was trained with, on any machine and in any release.
    assert (random_positions(8, seed=0) * 6).astype(int).tolist() == [5, 4, 2, 1, 3, 2, 4, 1]
    assert ExitTable.at_random(8, 6, seed=0).exit_layers.tolist() == [6, 5, 3, 2, 4, 3, 5, 2]


def test_the_seed_settles_the_table(tokenizer: PreTrainedTokenizerBase) -> None:
    first, again, other = (ExitTable.at_random(tokenizer, 6, seed=seed) for seed in (3, 3, 4))
    assert first == again
    assert first.fingerprint != other.fingerprint
    assert first.parameters == {"num_buckets": 6, "min_exit": 1, "seed": 3}


def test_every_bucket_is_equally_likely() -> None:
    table = ExitTable.at_random(60_000, 6, num_buckets=3)
    layers, counts = np.unique(table.exit_layers.numpy(), return_counts=True)
    assert layers.tolist() == [1, 3, 5]
    assert np.all(np.abs(counts - 20_000) < 500)


def test_special_tokens_and_spare_rows_never_exit(tokenizer: PreTrainedTokenizerBase) -> None:
    table = ExitTable.at_random(tokenizer, 6, num_buckets=1, min_exit=0, vocab_size=len(tokenizer) + 3)
    assert table.exit_layers.tolist() == [6] * 6 + [0] * (len(tokenizer) - 6) + [6] * 3


def test_a_larger_vocabulary_keeps_the_draws_of_a_smaller_one() -> None:
    small, large = ExitTable.at_random(50, 6), ExitTable.at_random(80, 6)
    assert large.exit_layers[:50].tolist() == small.exit_layers.tolist()


def test_seeds_are_whole_numbers() -> None:
    with pytest.raises(TableError, match="seed=-1"):
        ExitTable.at_random(10, 2, seed=-1)
