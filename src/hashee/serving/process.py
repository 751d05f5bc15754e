"""A model's process seen from the server: batches go in, outputs come out, and its death is noticed."""

import asyncio
import multiprocessing
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from hashee.serving.settings import ModelSettings
from hashee.serving.worker import Done, Job, NotOpened, Opened, work

Message = Opened | NotOpened | Done


@dataclass(frozen=True)
class Listeners:
    """What is called in the event loop."""

    received: Callable[[Message], None]
    died: Callable[[int | None], None]
    """With the exit code, which is minus the number of the signal that killed it."""


class WorkerProcess:
    """A started worker. Two threads of the server wait for its pipe, so that the event loop never does."""

    def __init__(self, settings: ModelSettings, pooling: str, listeners: Listeners) -> None:
        self._listeners = listeners
        self._loop = asyncio.get_running_loop()
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=work, args=(theirs, settings, pooling), name=f"hashee-{settings.name}", daemon=True
        )
        self._process.start()
        # Only the worker holds its end now, so that the pipe ends with it.
        theirs.close()
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        for target in (self._send_all, self._receive_all):
            threading.Thread(target=target, daemon=True).start()

    def send(self, job: Job) -> None:
        """Hand a batch over; it never blocks."""
        self._jobs.put(job)

    def kill(self) -> None:
        """End the process at once, which loses nothing but what it runs: it writes no files."""
        self._process.kill()

    def _send_all(self) -> None:
        while True:
            job = self._jobs.get()
            try:
                self._connection.send(job)
            except OSError:
                return  # it died; the other thread notices
            if job is None:
                return

    def _receive_all(self) -> None:
        while True:
            try:
                message = self._connection.recv()
            except (EOFError, OSError):
                break
            self._call(self._listeners.received, message)
        self._process.join()
        self._jobs.put(None)  # the other thread ends as well
        self._call(self._listeners.died, self._process.exitcode)

    def _call(self, listener: Callable[..., None], argument: Any) -> None:
        with suppress(RuntimeError):  # the server has ended, and with it the loop
            self._loop.call_soon_threadsafe(listener, argument)
