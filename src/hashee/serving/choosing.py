"""Which of the waiting texts run next: the oldest, and those that cost about as much, within a budget."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class BatchBudget:
    """What a batch may hold; a text that is larger runs alone."""

    macs: float
    tokens: int = 8192
    """Bounds memory where multiply-accumulates are cheap."""


@dataclass(frozen=True)
class Cost:
    """What a text costs."""

    macs: int
    tokens: int


def choose_batch(waiting: Sequence[Cost], budget: BatchBudget) -> list[int]:
    """Return the indices of the texts to run, in order of arrival; `waiting` is in that order.

    The oldest is always among them, so that none waits for ever. The others are its neighbours by cost: texts of one
    length leave no empty slots.
    """
    by_cost = sorted(range(len(waiting)), key=lambda index: waiting[index].macs)
    low = high = by_cost.index(0)
    macs, tokens = waiting[0].macs, waiting[0].tokens
    while True:
        neighbours = [place for place in (low - 1, high + 1) if 0 <= place < len(by_cost)]
        fitting = [
            place
            for place in neighbours
            if macs + waiting[by_cost[place]].macs <= budget.macs
            and tokens + waiting[by_cost[place]].tokens <= budget.tokens
        ]
        if not fitting:
            return sorted(by_cost[low : high + 1])
        nearest = min(fitting, key=lambda place: abs(waiting[by_cost[place]].macs - waiting[0].macs))
        low, high = min(low, nearest), max(high, nearest)
        macs += waiting[by_cost[nearest]].macs
        tokens += waiting[by_cost[nearest]].tokens
