"""Ctrl-C and SIGTERM end a command alike: what is open is closed, temporary files go, one line says so."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

INTERRUPTED, TERMINATED = 130, 143
"""Exit codes: 128 and the number of the signal, as shells have it."""


class Stopped(SystemExit):
    """A command was told to stop."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(code)
        self.message = message


@contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """Raise Stopped in the main thread on SIGTERM; a second one ends the process at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    process = os.getpid()

    def stop(number: int, frame: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if os.getpid() != process:
            # A forked worker must not clean up what belongs to its parent.
            os.kill(os.getpid(), signal.SIGTERM)
        raise Stopped("terminated", TERMINATED)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
