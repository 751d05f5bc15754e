"""How far a job is, and how long it will still take."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from tqdm import tqdm  # type: ignore[import-untyped]


class Report(Protocol):
    """Called with the rows of a part that was written."""

    def __call__(self, rows: int) -> None: ...


@contextmanager
def shown_progress(total: int, done: int) -> Iterator[Report]:
    """Show rows, rows per second and the time left while standard error is a terminal.

    total: lines of the input. done: those that an earlier run has scored, which do not count for the estimate.
    """
    with tqdm(total=total, initial=min(done, total), desc="scoring", unit=" rows", disable=None, smoothing=0.05) as bar:

        def report(rows: int) -> None:
            bar.update(rows)

        yield report
