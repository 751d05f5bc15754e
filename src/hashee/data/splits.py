"""Taking parts of a split, the same ones for the same seed on every machine."""

import random
from collections.abc import Sequence

from hashee.data.task import Examples, Target
from hashee.data.task_types import TaskType
from hashee.errors import InputError

# A dev split of fewer rows than this tells nothing, so small data give up a larger share, up to a quarter.
_FEW_ROWS = 20


def cut_off_dev(examples: Examples, task_type: TaskType, share: float, seed: int) -> tuple[Examples, Examples]:
    """Return train and dev: every class, or every range of scores, gives about its `share` to dev."""
    assert examples.targets is not None
    chosen = set(dev_indices(examples.targets, task_type, share, seed))
    kept = [index for index in range(len(examples)) if index not in chosen]
    return part_of(examples, kept), part_of(examples, sorted(chosen))


def dev_indices(targets: Sequence[Target], task_type: TaskType, share: float, seed: int) -> list[int]:
    """Return which rows become dev."""
    order = task_type.stratified(shuffled(len(targets), seed), targets)
    if len(order) < 2:
        raise InputError(f"{len(targets)} rows are too few to cut a dev split off; pass dev=... or add rows")
    size = max(round(len(order) * share), min(_FEW_ROWS, len(order) // 4), 1)
    # Steps of equal length over the sorted rows sample each class in proportion.
    return [order[(2 * step + 1) * len(order) // (2 * size)] for step in range(size)]


def first_of_shuffled(examples: Examples, limit: int, seed: int) -> Examples:
    """Return a part of `limit` rows, in file order; a larger limit gives the same rows and more."""
    return part_of(examples, sorted(shuffled(len(examples), seed)[:limit]))


def shuffled(length: int, seed: int) -> list[int]:
    """Return the numbers below `length` in a random order that depends on nothing but the seed."""
    # Python promises the same stream of random() on every machine and in every version; of shuffle() it does not.
    draw = random.Random(seed).random
    keys = [draw() for _ in range(length)]
    return sorted(range(length), key=keys.__getitem__)


def part_of(examples: Examples, indices: Sequence[int]) -> Examples:
    """Return the rows with these indices."""
    targets = examples.targets
    return Examples(
        [examples.texts[index] for index in indices],
        None if targets is None else [targets[index] for index in indices],
    )
