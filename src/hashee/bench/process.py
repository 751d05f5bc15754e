"""A worker seen from the benchmark: started with a fixed number of threads, asked, stopped when it takes too long."""

import json
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from hashee.cost.threads import THREAD_VARIABLES
from hashee.errors import HasheeError

SCRIPT = Path(__file__).with_name("worker.py")
LOG_TAIL = 3


class WorkerFailed(HasheeError):
    """A worker reported an error, died, or did not reply in time."""


class WorkerProcess:
    """A worker that waits for requests; a context manager, so that none is left behind."""

    def __init__(self, name: str, threads: int, log: Path, light: bool = False) -> None:
        self.name = name
        self._log = log
        environment = os.environ | dict.fromkeys(THREAD_VARIABLES, str(threads))
        # A worker reads prepared files only; progress bars and look-ups on the Hub would be noise.
        environment |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false"}
        # -P: the script's own folder must not hide other modules.
        command = [sys.executable, "-P", str(SCRIPT), *(["--light"] if light else [])]
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environment
            )
        self._replies: queue.Queue[bytes | None] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def __enter__(self) -> "WorkerProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def ask(self, do: str, limit: float, **fields: Any) -> dict[str, Any]:
        """Send a request and return the reply, or raise WorkerFailed after `limit` seconds or if the worker dies."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **fields}).encode() + b"\n")
            self._process.stdin.flush()
        except (OSError, ValueError):  # the pipe is broken, or was closed when the worker was stopped
            raise WorkerFailed(self._last_words()) from None
        try:
            line = self._replies.get(timeout=limit)
        except queue.Empty:
            self.stop()
            raise WorkerFailed(f"{do} took longer than {limit:.0f} s") from None
        if line is None:
            raise WorkerFailed(self._last_words())
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise WorkerFailed(reply["error"])
        return reply

    def stop(self) -> None:
        """End the process."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as replies:
            for line in replies:
                self._replies.put(line)
        self._replies.put(None)

    def _last_words(self) -> str:
        """Say how the process ended, with the end of what it printed."""
        code = self._process.wait()
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-LOG_TAIL:]
        how = f"killed by signal {-code}" if code < 0 else f"ended with code {code}"
        return " | ".join([f"the process was {how}" if code < 0 else f"the process {how}", *lines])[:500]
