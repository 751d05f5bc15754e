"""Commands that train stop on SIGTERM as they do on Ctrl-C, and say so in their exit code."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Terminated(KeyboardInterrupt):
    """SIGTERM: what `kill`, schedulers and containers send to end a process."""


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """Let SIGTERM raise Terminated; where training is under way, a checkpoint is written before."""
    before = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread() or before in (signal.SIG_IGN, None):
        yield
        return
    signal.signal(signal.SIGTERM, _raise)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _raise(number: int, frame: Any) -> None:
    raise Terminated


def how_it_stopped(error: KeyboardInterrupt) -> tuple[str, int]:
    """Return what to say and the exit code, which is 128 and the number of the signal."""
    return ("terminated", 143) if isinstance(error, Terminated) else ("interrupted", 130)
