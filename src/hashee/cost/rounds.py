"""Timing things in one process, side by side."""

import time
from collections.abc import Callable, Sequence
from typing import Any


def alternate(runs: Sequence[Callable[[], Any]], rounds: int) -> list[tuple[float, ...]]:
    """Return the seconds that each run took in each of some rounds, in which they take turns. (runs, rounds)"""
    seconds: list[list[float]] = [[] for _ in runs]
    for number in range(rounds):
        # Whoever comes first in one round comes last in the next.
        turns = range(len(runs)) if number % 2 == 0 else reversed(range(len(runs)))
        for turn in turns:
            began = time.perf_counter()
            runs[turn]()
            seconds[turn].append(time.perf_counter() - began)
    return [tuple(each) for each in seconds]
