"""How far a benchmark is: a line that renews itself in a terminal, plain lines on standard error elsewhere."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

from hashee.bench.protocol import Report

SECONDS_BETWEEN_LINES = 2.0
# Often enough to be seen moving, rarely enough not to take time from what is measured.
REFRESHES_PER_SECOND = 2


@dataclass
class Clock:
    """Time since the start, and an estimate of what is left."""

    budget: float | None = None
    """Seconds after which no further round starts."""
    now: Callable[[], float] = time.monotonic
    started: float = field(init=False)

    def __post_init__(self) -> None:
        self.started = self.now()

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return self.now() - self.started

    def left(self, done: float, steps: float) -> float | None:
        """Seconds that are left if all steps take alike, and no more than the budget allows; None before the first."""
        if not done or not steps:
            return None
        elapsed = self.elapsed
        left = elapsed * max(steps - done, 0) / done
        return left if self.budget is None else min(left, max(self.budget - elapsed, 0.0))

    def said(self, done: float, steps: float) -> str:
        """Say how long it has taken and how long it will take, such as `1:05, about 2:10 left`."""
        left = self.left(done, steps)
        return minutes(self.elapsed) + ("" if left is None else f", about {minutes(left)} left")


def minutes(seconds: float) -> str:
    """Return seconds as m:ss, or h:mm:ss from an hour on."""
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"


@contextmanager
def shown_progress(console: Console, budget: float | None = None) -> Iterator[Report]:
    """Give a function to report to, and show what it is told from now on.

    console: what results are printed to; where it is no terminal, progress goes to standard error.
    """
    clock = Clock(budget)
    console = console if console.is_terminal else Console(stderr=True)
    if console.is_terminal:
        with Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=10),
            _Times(clock),
            console=console,
            refresh_per_second=REFRESHES_PER_SECOND,
            transient=True,
            redirect_stdout=False,  # results may go to a file
        ) as progress:
            task = progress.add_task("starting", total=None)
            yield lambda what, done, steps: progress.update(task, description=what, completed=done, total=steps)
    else:
        lines = _Lines(console, clock)
        lines("starting", 0, 0)
        yield lines


class _Times(ProgressColumn):
    """Time that has gone and that is left."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock

    def render(self, task: Task) -> Text:
        """Return both."""
        return Text(self.clock.said(task.completed, task.total or 0))


class _Lines:
    """Writes a line for what happens, the first at once, then no more than one in some seconds."""

    def __init__(self, console: Console, clock: Clock) -> None:
        self.console, self.clock = console, clock
        self.last: float | None = None
        self.lock = threading.Lock()

    def __call__(self, what: str, done: int, steps: int) -> None:
        with self.lock:
            now = self.clock.now()
            if self.last is not None and done and now - self.last < SECONDS_BETWEEN_LINES:
                return
            self.last = now
            share = f" ({done} of {steps} steps)" if done else ""
            line = Text(f"{self.clock.said(done, steps)}: {what}{share}")
            self.console.print(line, soft_wrap=True, highlight=False)
