"""Ctrl-C and SIGTERM: how a command ends on them, and how a training first finishes its step and writes a checkpoint.

The whole command line uses it, so nothing slow is imported here.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_REASONS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}


class Stopped(SystemExit):
    """A signal told the command to stop; the exit code is 128 and the signal's number, as shells have it."""

    code: int

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(128 + number)
        self.reason = _REASONS[number]
        """What to print."""


STOPS = (KeyboardInterrupt, Stopped)
"""What Ctrl-C and SIGTERM raise in a command."""


def as_stopped(error: BaseException) -> Stopped:
    """Return one of `STOPS` with its reason and exit code."""
    return error if isinstance(error, Stopped) else Stopped(signal.SIGINT)


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """Raise Stopped in the main thread on SIGTERM, so that temporary files go; a second one ends the process at once.

    A SIGTERM that is ignored stays ignored.
    """
    before = signal.getsignal(signal.SIGTERM)
    if not _in_main_thread() or before in (signal.SIG_IGN, None):
        yield
        return
    process = os.getpid()

    def stop(number: int, frame: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if os.getpid() != process:
            # A forked worker must not clean up what belongs to its parent.
            os.kill(os.getpid(), signal.SIGTERM)
        raise Stopped(signal.SIGTERM)

    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class StopRequest:
    """Whether a signal asked a training to stop; the training loop looks at `requested` after each step."""

    def __init__(self) -> None:
        self.number: int | None = None
        """The signal that asked for it."""
        self._handlers: dict[int, Any] = {}
        """Handlers of the signals before `listening`."""

    @property
    def requested(self) -> bool:
        """Whether a signal came."""
        return self.number is not None

    @contextmanager
    def listening(self, alone: bool) -> Iterator[None]:
        """Hold the first signal back until the body has ended, then let it act; a second one acts at once.

        alone: False for one of several processes, which would have to agree on the step, so signals act at once.
        """
        if not alone or not _in_main_thread():
            yield
            return
        # Signals that are ignored (nohup), or handled outside of Python, stay as they are.
        handlers = {number: signal.getsignal(number) for number in _REASONS}
        self._handlers = {number: each for number, each in handlers.items() if each not in (signal.SIG_IGN, None)}
        for number in self._handlers:
            signal.signal(number, self._note)
        try:
            yield
        finally:
            self._restore()
        if self.number is not None:
            # Now that the checkpoint is written: KeyboardInterrupt, Stopped, or the end of the process.
            signal.raise_signal(self.number)
            raise KeyboardInterrupt  # the handler returned, but the training is not finished

    def _note(self, number: int, frame: Any) -> None:
        self.number = number
        self._restore()  # the next signal acts at once
        again = "press Ctrl-C again" if number == signal.SIGINT else "send the signal again"
        print(f"\nwriting a checkpoint; {again} to stop without it", file=sys.stderr, flush=True)

    def _restore(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)


def _in_main_thread() -> bool:
    """Tell whether this thread may set handlers of signals."""
    return threading.current_thread() is threading.main_thread()
