"""Which of the waiting texts run next: the oldest, and those that cost about as much, within a budget."""

from collections.abc import Collection, Sequence
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


def choose_batch(waiting: Sequence[Cost], budget: BatchBudget, overdue: Collection[int] = ()) -> list[int]:
    """Return the indices of the texts to run, in order of arrival; `waiting` is in that order.

    First come the oldest and those that are overdue, as many as fit, so that none waits for long. The others cost about
    as much as the oldest: texts of one length leave no empty slots.
    """
    first = sorted({0, *overdue})
    alike = sorted(set(range(len(waiting))) - set(first), key=lambda index: abs(waiting[index].macs - waiting[0].macs))
    chosen: list[int] = []
    macs = tokens = 0
    for index in (*first, *alike):
        macs += waiting[index].macs
        tokens += waiting[index].tokens
        if chosen and (macs > budget.macs or tokens > budget.tokens):
            break
        chosen.append(index)
    return sorted(chosen)
