"""Which examples each optimizer step learns from, how processes share them, and how they are cut to fit in memory.

All of it is a function of seed, epoch and lengths, so that any number of processes takes the same steps, and a run that
was interrupted finds its place again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Sampler

Integers = NDArray[np.int64]


class Steps(Sampler[list[int]]):
    """The examples of each step of an epoch, in a new random order every epoch.

    Steps are drawn from the whole set: rows are packed without padding, so grouping texts by length would only make the
    steps less random.
    """

    def __init__(self, examples: int, batch_size: int, seed: int) -> None:
        self.examples = examples
        self.batch_size = batch_size
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of this epoch; the Trainer calls it."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        order = np.random.default_rng([self.seed, self.epoch]).permutation(self.examples)
        for first in range(0, self.examples, self.batch_size):
            yield order[first : first + self.batch_size].tolist()

    def __len__(self) -> int:
        return (self.examples + self.batch_size - 1) // self.batch_size


@dataclass(frozen=True)
class Share:
    """What one process does of a step."""

    micro_batches: list[list[int]]
    """Places of the examples that go through the model together."""
    counted: bool
    """False if there were fewer examples than processes: this one only keeps the others company."""


def share_of_step(step: Sequence[int], lengths: Integers, rank: int, count: int, tokens: int) -> Share:
    """Give each process equally many examples (one more for the first ones) of like cost, cut into micro-batches.

    lengths: (all examples,) tokens of each. tokens: of a micro-batch at the most; a longer text is one of its own.
    """
    # Dealt out there and back again, so that nobody always gets the longer one.
    ranked = sorted(step, key=lambda place: (-int(lengths[place]), place))
    mine = [
        place
        for number, place in enumerate(ranked)
        if (number % count if number // count % 2 == 0 else count - 1 - number % count) == rank
    ]
    counted = bool(mine)
    micro_batches: list[list[int]] = []
    room = 0
    for place in mine or ranked[-1:]:
        if not micro_batches or lengths[place] > room:
            micro_batches.append([])
            room = tokens
        micro_batches[-1].append(place)
        room -= int(lengths[place])
    return Share(micro_batches, counted)
