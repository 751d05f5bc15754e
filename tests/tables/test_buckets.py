"""Buckets spread evenly over layers, and tokens evenly over buckets."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hashee.errors import TableError
from hashee.tables.buckets import Buckets

SMALL = st.integers(1, 40)


@pytest.mark.parametrize(
    ("num_layers", "num_buckets", "layers"),
    [
        (12, 3, [1, 5, 9]),
        (6, 6, [1, 2, 3, 4, 5, 6]),
        (6, 4, [1, 2, 4, 5]),
        (3, 6, [1, 1, 2, 2, 3, 3]),
        (12, 1, [1]),
        (1, 3, [1, 1, 1]),
    ],
)
def test_bucket_b_exits_at_one_plus_floor_of_l_b_over_b(num_layers: int, num_buckets: int, layers: list[int]) -> None:
    assert Buckets.over(num_layers, num_buckets).layers().tolist() == layers


def test_as_many_buckets_as_layers_unless_told_otherwise() -> None:
    assert Buckets.over(7) == Buckets(7, 7, 1)


@given(num_layers=SMALL, num_buckets=SMALL)
def test_min_exit_0_moves_the_first_bucket_only(num_layers: int, num_buckets: int) -> None:
    usual = Buckets.over(num_layers, num_buckets).layers()
    early = Buckets.over(num_layers, num_buckets, min_exit=0).layers()
    assert usual[0] == 1 and early[0] == 0
    assert np.array_equal(usual[1:], early[1:])


@given(count=st.integers(0, 500), num_buckets=SMALL)
def test_cuts_are_contiguous_and_differ_by_at_most_one(count: int, num_buckets: int) -> None:
    cut = Buckets.over(3, num_buckets).cut(count)
    sizes = np.bincount(cut, minlength=num_buckets)
    assert len(cut) == count and len(sizes) == num_buckets  # no bucket beyond the last
    assert sizes.max() - sizes.min() <= 1
    assert np.all(np.diff(cut) >= 0)


def test_unranked_ids_get_the_last_layer() -> None:
    layers = Buckets.over(4, 2).layers_of_ranking(np.array([5, 0, 3]), vocab_size=7)
    assert layers.tolist() == [1, 4, 4, 3, 4, 1, 4]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0,), "num_layers=0"),
        ((2.0,), "num_layers=2.0"),
        ((True,), "num_layers=True"),
        ((6, 0), "num_buckets=0"),
        ((6, 3, 2), "min_exit=2"),
        ((6, 3, -1), "min_exit=-1"),
    ],
)
def test_impossible_buckets_are_refused_by_value(arguments: tuple[int, ...], message: str) -> None:
    with pytest.raises(TableError, match=message):
        Buckets.over(*arguments)
