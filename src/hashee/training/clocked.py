"""Tables for a measured speed-up: the counted speed-up that leads to it is found by timing tables."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

from hashee.cost.rounds import alternate
from hashee.data.batching import Batching
from hashee.data.texts import Text
from hashee.errors import ImpossibleSpeedup, TableError
from hashee.families.adapters import adapter_for
from hashee.hf.convert import convert
from hashee.hf.predict import Scorer, predict, run_in_torch
from hashee.tables.table import ExitTable

TRIES = 8
CLOSE = 0.01
"""Relative distance from the speed-up asked for at which the search stops; clocks vary by more."""
_MISSED = 0.05
_MARGIN = 1e-3
_ROUNDS = 5
_SECONDS_OF_ROUND = 2.0
"""Target time of the dense model for the texts of a round, long enough that a short stall does not decide."""
_FIRST_TEXTS = 64
_MOST_TEXTS = 2000


@dataclass(frozen=True)
class Clock:
    """Texts on which models with exits are timed against the dense model, which transformers runs in like batches."""

    dense: Any
    """The whole backbone."""
    start: Any
    """The model that is converted, with the layers of `dense` that are kept; it may be `dense` itself."""
    tokenizer: Any
    texts: Sequence[Text]

    @classmethod
    def on(cls, texts: Sequence[Text], dense: Any, start: Any, tokenizer: Any) -> "Clock":
        """Take as many texts as keep the dense model busy for a round."""
        clock = cls(dense.eval(), start, tokenizer, texts[:_FIRST_TEXTS])
        seconds = min(alternate([clock._run_dense], 2)[0])
        wanted = math.ceil(len(clock.texts) * _SECONDS_OF_ROUND / max(seconds, 1e-6))
        return replace(clock, texts=texts[: max(_FIRST_TEXTS, min(wanted, _MOST_TEXTS))])

    def speedup(self, table: ExitTable) -> float:
        """Return how many times as fast the model is with a table: the median of rounds in which both take turns."""
        hashed = convert(self.start, table, self.tokenizer).eval()
        runs = [self._run_dense, lambda: list(hashed.predict(self.texts, progress=False))]
        alternate(runs, 1)  # warms up
        dense_times, hashed_times = alternate(runs, _ROUNDS)
        return median(dense / own for dense, own in zip(dense_times, hashed_times, strict=True))

    def _run_dense(self) -> None:
        adapter, config = adapter_for(self.dense.config), self.dense.config
        run = partial(run_in_torch, self.dense)
        scorer = Scorer(run, adapter.max_length(config), adapter.token_types, exit_layers=None)
        list(predict(scorer, self.texts, self.tokenizer, Batching(), progress=False))


def table_for_time(
    asked: float, build: Callable[[float], ExitTable], measured_speedup: Callable[[ExitTable], float]
) -> ExitTable:
    """Return the table whose measured speed-up is nearest to the one asked for; its parameters record both.

    build: from a counted speed-up to its table; raises ImpossibleSpeedup where there is none. measured_speedup: of a
    table. Where the engine is faster than asked even with the fewest exits, that table is returned.
    """
    tried: list[tuple[float, float, ExitTable]] = []  # counted, measured
    counted, lowest, highest = asked, 1.0, math.inf
    refused: ImpossibleSpeedup | None = None
    for _ in range(TRIES):
        try:
            table = build(counted)
        except ImpossibleSpeedup as error:
            refused = refused or error  # the first is about the speed-up asked for
            # At the very ends of the range, rounding would decide whether a table exists.
            lowest, highest = error.lowest * (1 + _MARGIN), error.highest * (1 - _MARGIN)
            counted = min(max(counted, lowest), highest)
            continue
        measured = measured_speedup(table)
        tried.append((counted, measured, table))
        before, counted = counted, min(max(_next(asked, [each[:2] for each in tried]), lowest), highest)
        if abs(measured / asked - 1) <= CLOSE or counted == before:
            break
    if not tried and refused is not None:
        raise refused
    counted, measured, table = min(tried, key=lambda each: abs(math.log(each[1] / asked)))
    if measured < asked * (1 - _MISSED):
        raise TableError(
            f"a measured speed-up of {asked:g}x cannot be had here: {counted:.3g}x fewer operations ran "
            f"{measured:.3g}x as fast"
        )
    return replace(table, parameters=table.parameters | {"clock": {"asked": asked, "measured": measured}})


def _next(asked: float, tried: list[tuple[float, float]]) -> float:
    """Return the counted speed-up to try next, as time roughly follows operations.

    tried: pairs of counted and measured speed-up.
    """
    slower = [each for each in tried if each[1] < asked]
    faster = [each for each in tried if each[1] >= asked]
    if not slower or not faster:
        counted, measured = max(slower) if slower else min(faster)
        return counted * asked / measured
    (low, low_time), (high, high_time) = max(slower), min(faster)
    # A noisy clock may measure that fewer operations took longer; then the middle is tried.
    share = math.log(asked / low_time) / math.log(high_time / low_time) if low < high else 0.5
    return math.exp(math.log(low) + share * math.log(high / low))
