"""Timing several functions in one process, in interleaved rounds."""

import time
from collections.abc import Callable, Sequence
from typing import Any


def alternate(
    runs: Sequence[Callable[[], Any]], rounds: int, before: Callable[[int], Any] = lambda index: None
) -> list[tuple[float, ...]]:
    """Time each run once in every round, interleaved. Returns the seconds, (runs, rounds).

    before: told the number of each run before its clock starts, to show progress.
    """
    seconds: list[list[float]] = [[] for _ in runs]
    for number in range(rounds):
        # The order is reversed from round to round.
        order = range(len(runs)) if number % 2 == 0 else reversed(range(len(runs)))
        for index in order:
            before(index)
            began = time.perf_counter()
            runs[index]()
            seconds[index].append(time.perf_counter() - began)
    return [tuple(each) for each in seconds]
