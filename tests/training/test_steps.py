"""Steps, shares and micro-batches: nothing lost, nothing twice, the same for any number of processes."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hashee.training.trainer import Steps, share_of_step


def test_an_epoch_holds_every_example_once_in_an_order_of_its_own() -> None:
    steps = Steps(103, 16, seed=5)
    first = list(steps)
    assert len(first) == len(steps) == 7
    assert [len(step) for step in first] == [16] * 6 + [7]
    assert sorted(place for step in first for place in step) == list(range(103))
    assert list(steps) == first, "the same epoch is the same again"
    steps.set_epoch(1)
    assert list(steps) != first
    assert list(Steps(103, 16, seed=6)) != first


@given(
    lengths=st.lists(st.integers(1, 50), min_size=1, max_size=40),
    count=st.integers(1, 5),
    tokens=st.integers(1, 120),
)
def test_processes_share_a_step_and_keep_to_their_memory(lengths: list[int], count: int, tokens: int) -> None:
    costs = np.array(lengths, dtype=np.int64)
    step = list(range(len(lengths)))
    shares = [share_of_step(step, costs, rank, count, tokens) for rank in range(count)]
    taken = [[place for batch in share.micro_batches for place in batch] for share in shares if share.counted]
    assert sorted(place for places in taken for place in places) == step
    sizes = [len(places) for places in taken] + [0] * (count - len(taken))
    assert max(sizes) - min(sizes) <= 1
    for share in shares:
        assert share.micro_batches, "a process without a batch would leave the others waiting"
        for batch in share.micro_batches:
            assert batch
            assert len(batch) == 1 or costs[batch].sum() <= tokens


def test_processes_get_like_amounts_of_work() -> None:
    lengths = np.arange(1, 65)
    shares = [share_of_step(range(64), lengths, rank, 4, 10_000) for rank in range(4)]
    work = [sum(int(lengths[place]) for batch in share.micro_batches for place in batch) for share in shares]
    assert max(work) - min(work) <= 2


def test_members_of_a_group_are_next_to_each_other_and_groups_in_random_order() -> None:
    groups = np.arange(90) % 30
    steps = Steps(90, 15, seed=5, groups=groups)
    order = [place for step in steps for place in step]
    assert sorted(order) == list(range(90))
    seen = groups[order].reshape(30, 3)
    assert (seen == seen[:, :1]).all(), "the three of each group follow each other"
    assert seen[:, 0].tolist() != sorted(seen[:, 0].tolist())
    steps.set_epoch(1)
    assert [place for step in steps for place in step] != order
