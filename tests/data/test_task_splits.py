"""Parts of a split: partitions, the same for the same seed, in proportion."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hashee.data import Examples, Kind
from hashee.data.splits import cut_off_dev, dev_indices, first_of_shuffled, shuffled
from hashee.data.task_types import TASK_TYPES
from hashee.errors import InputError

classes = st.lists(st.integers(0, 4), min_size=10, max_size=200)
seeds = st.integers(0, 2**32)


@given(targets=classes, seed=seeds, share=st.floats(0.05, 0.25))
def test_a_cut_is_a_partition_and_stable_under_its_seed(targets: list[int], seed: int, share: float) -> None:
    whole = Examples([f"text {number}" for number in range(len(targets))], targets)
    train, dev = cut_off_dev(whole, TASK_TYPES[Kind.CLASSES], share, seed)
    both = dict(zip([*train.texts, *dev.texts], [*(train.targets or ()), *(dev.targets or ())], strict=True))
    assert both == dict(zip(whole.texts, targets, strict=True)) and len(train) + len(dev) == len(whole)
    assert len(dev) >= 1 and set(train.targets or ()) == set(targets)
    for part in (train, dev):
        numbers = [int(str(text).split()[1]) for text in part.texts]
        assert numbers == sorted(numbers)
    assert cut_off_dev(whole, TASK_TYPES[Kind.CLASSES], share, seed) == (train, dev)


@given(targets=classes, seed=seeds)
def test_every_class_gives_its_share(targets: list[int], seed: int) -> None:
    chosen = dev_indices(targets, TASK_TYPES[Kind.CLASSES], 0.1, seed)
    given_up = Counter(targets[index] for index in chosen)
    several = sum(count for count in Counter(targets).values() if count > 1)
    for label, count in Counter(targets).items():
        if count > 1:
            assert abs(given_up[label] - count * len(chosen) / several) < 1
        else:
            assert given_up[label] == 0


def test_scores_are_cut_evenly_over_their_range() -> None:
    scores = [float(number) for number in range(1000)]
    chosen = dev_indices(scores, TASK_TYPES[Kind.SCORE], 0.1, seed=3)
    assert len(chosen) == 100
    assert Counter(int(scores[index] // 100) for index in chosen) == dict.fromkeys(range(10), 10)


@given(length=st.integers(0, 300), seed=seeds, limits=st.tuples(st.integers(1, 300), st.integers(1, 300)))
def test_smaller_limits_are_parts_of_larger_ones(length: int, seed: int, limits: tuple[int, int]) -> None:
    assert sorted(shuffled(length, seed)) == list(range(length))
    whole = Examples([str(number) for number in range(length)], None)
    small, large = (first_of_shuffled(whole, limit, seed) for limit in sorted(limits))
    assert set(small.texts) <= set(large.texts) <= set(whole.texts)
    assert len(small) == min(*limits, length) and small.targets is None


def test_the_order_does_not_change_between_versions() -> None:
    assert shuffled(8, seed=0) == [3, 7, 5, 2, 4, 1, 6, 0]


@pytest.mark.parametrize("targets", [[0, 1], [0, 1, 2, 3], [0]])
def test_classes_of_one_example_cannot_be_cut(targets: list[int]) -> None:
    with pytest.raises(InputError, match="too few to cut a dev split off"):
        dev_indices(targets, TASK_TYPES[Kind.CLASSES], 0.1, seed=0)
