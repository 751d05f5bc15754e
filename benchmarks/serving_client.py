"""What the benchmarks of serving share: a server in a process of its own, and a client of a few lines."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil


class RunningServer:
    """`hashee serve` on a free port of loopback; a context manager. What it says is read until it ends."""

    def __init__(
        self,
        *arguments: object,
        port: int = 0,
        token: str | None = None,
        seconds: float = 300,
        program: Sequence[object] = ("-m", "hashee", "serve"),
    ) -> None:
        """token: that clients must send. seconds: until it listens. program: what Python runs, if it is another."""
        command = [sys.executable, *map(str, (*program, *arguments, "--port", port))]
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        environment |= {} if token is None else {"HASHEE_TOKEN": token}
        self.lines: list[str] = []
        self._listening = threading.Event()
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        threading.Thread(target=self._read, daemon=True).start()
        self._listening.wait(seconds)
        found = re.search(r"serving on (http://\S+)", self.said)
        if found is None:
            self.process.kill()
            raise RuntimeError(f"the server did not start: {self.said}")
        self.url = found[1]

    @property
    def said(self) -> str:
        """Everything on standard error so far."""
        return "".join(self.lines)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if "serving on" in line:
                self._listening.set()
        self._listening.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def workers(self) -> list[int]:
        """Return the processes of the models; not the one in which Python's multiprocessing tracks resources."""
        try:
            children = psutil.Process(self.process.pid).children()
            return [each.pid for each in children if "spawn_main" in " ".join(each.cmdline())]
        except psutil.NoSuchProcess:
            return []


@dataclass(frozen=True)
class Reply:
    """What a server sent."""

    status: int
    headers: dict[str, str]
    body: bytes


class Client:
    """As little of HTTP as it takes: a client that is slower than the server would measure itself."""

    def __init__(self, url: str, resend: bool = True) -> None:
        """resend: whether a request is sent again if it breaks on a connection that had been used before."""
        self._resend = resend
        host, _, port = url.removeprefix("http://").rpartition(":")
        self._address = (host.strip("[]"), int(port))
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def send(
        self, method: str, path: str, body: bytes = b"", headers: Sequence[str] = ("Content-Type: application/json",)
    ) -> Reply:
        """Send a request on a free connection, or a new one, and return what came back."""
        head = "\r\n".join((f"{method} {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *headers))
        return await self.send_raw(head.encode("latin-1") + b"\r\n\r\n" + body)

    async def send_raw(self, request: bytes) -> Reply:
        """Send the bytes of one request."""
        while True:
            was_free = bool(self._free)
            reader, writer = self._free.pop() if was_free else await asyncio.open_connection(*self._address)
            try:
                writer.write(request)
                reply = await self._reply(reader)
            except asyncio.CancelledError:
                writer.close()
                raise
            except (OSError, asyncio.IncompleteReadError):
                writer.close()
                if was_free and self._resend:
                    continue  # the server closes connections that were idle
                raise
            if reply.headers.get("connection") == "close":
                writer.close()
            else:
                self._free.append((reader, writer))
            return reply

    @staticmethod
    async def _reply(reader: asyncio.StreamReader) -> Reply:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
        body = await reader.readexactly(int(headers["content-length"]))
        return Reply(int(lines[0].split()[1]), headers, body)

    def close(self) -> None:
        """Close the connections that are free."""
        for _, writer in self._free:
            writer.close()
        self._free.clear()


def folder_names(models: Sequence[Path]) -> list[str]:
    """Return what requests call the models."""
    return [model.absolute().name for model in models]


def reason_of(value: Any) -> str | None:
    """Return the line that says why a request was refused, in the words of either kind of endpoint."""
    said = value.get("error") if isinstance(value, dict) else None
    said = said.get("message") if isinstance(said, dict) else said
    return said if isinstance(said, str) else None
