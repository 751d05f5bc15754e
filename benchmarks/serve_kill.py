"""Kill workers and the server at random moments while clients send, and account for every request.

    python benchmarks/serve_kill.py MODEL [--kills 50] [--minutes 8] [--output kill.json]

Clients send texts without a pause and check every answer against the library's. A request whose worker dies is answered
all the same, since the server runs it once more; one that is failed (503, 504) or whose connection breaks because the
server itself was killed is sent again by its client, as clients do. The server is started again as a supervisor does
it: the same command, whenever it has ended. At the end no request is lost, none was answered wrongly, and no process of
a killed server is left. All of it is on loopback, and ends by count or by time.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from serve_load import Workload, embedded_texts, offline
from serving_client import Client, Reply, RunningServer

import hashee
from hashee.cost.machine import describe_machine

PATIENCE = 300.0
"""Seconds for which a client sends a request again; a busy machine may take a minute to start a server."""


@dataclass(frozen=True)
class KillSettings:
    """How much is killed, and by when it ends."""

    kills: int = 50
    of_server: float = 0.2
    """Share of the kills that hit the server itself."""
    pause: float = 3.0
    """Seconds between kills, on average."""
    seconds: float = 480.0
    clients: int = 4
    each: int = 4
    """Texts of a request."""
    seed: int = 0


@dataclass
class Outcome:
    """What became of the requests and of the processes."""

    kills: Counter[str] = field(default_factory=Counter)
    answered: int = 0
    retried: int = 0
    """Requests that their client had to send more than once."""
    lost: int = 0
    wrong: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    """Attempts without an answer: by status, or by how the connection broke."""
    unexpected: list[str] = field(default_factory=list)
    orphans: int = 0
    back_seconds: list[float] = field(default_factory=list)
    """From the kill of a server until a new one was ready."""
    restarts: int = 0
    """Workers that the servers started anew, without a hand."""


class Supervised:
    """A server that is started again whenever it has ended, on the same port, as a supervisor does."""

    def __init__(self, arguments: tuple[object, ...]) -> None:
        self._arguments = arguments
        self.server = RunningServer(*arguments)
        self.url = self.server.url
        self._port = int(self.url.rpartition(":")[2])

    def kill_server(self, outcome: Outcome) -> None:
        """Kill the server, see that its workers end by themselves, and start another."""
        workers = [psutil.Process(pid) for pid in self.server.workers()]
        start = time.monotonic()
        self.server.process.kill()
        self.server.process.wait()
        self.server = RunningServer(*self._arguments, port=self._port)
        outcome.back_seconds.append(round(time.monotonic() - start, 1))
        _, alive = psutil.wait_procs(workers, timeout=60)
        outcome.orphans += len(alive)

    def kill_worker(self) -> bool:
        """Kill the model's process, whatever it is doing; return whether there was one."""
        workers = self.server.workers()
        if workers:
            os.kill(workers[0], signal.SIGKILL)
        return bool(workers)


def main() -> None:
    """Kill, count and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="file for the outcome as JSON")
    options = parser.parse_args()
    workload, _ = offline(hashee.load(options.model), embedded_texts(400))
    settings = KillSettings(options.kills, seconds=options.minutes * 60, seed=options.seed)
    outcome = asyncio.run(kill_at_random(options.model, workload, settings))
    report = summary(outcome)
    print(json.dumps(report, indent=1))
    if options.output is not None:
        options.output.write_text(json.dumps(report | {"machine": describe_machine(1)}, indent=1) + "\n")
    if outcome.lost or outcome.wrong or outcome.unexpected or outcome.orphans or not outcome.answered:
        sys.exit(1)


async def kill_at_random(model: Path, workload: Workload, settings: KillSettings) -> Outcome:
    """Let clients send while processes are killed, and return what became of everything."""
    outcome, chance = Outcome(), random.Random(settings.seed)
    loop = asyncio.get_running_loop()
    supervised = await loop.run_in_executor(None, Supervised, (model, "--threads", 1))
    stop = asyncio.Event()
    sender = Sender(supervised.url, workload, settings.each, outcome)
    clients = [asyncio.ensure_future(sender.send_until(stop, number)) for number in range(settings.clients)]
    end = time.monotonic() + settings.seconds
    try:
        while sum(outcome.kills.values()) < settings.kills and time.monotonic() < end:
            await asyncio.sleep(chance.expovariate(1 / settings.pause))
            if chance.random() < settings.of_server:
                outcome.restarts += await restarts_of(supervised.url)
                outcome.kills["server"] += 1
                await loop.run_in_executor(None, supervised.kill_server, outcome)
            elif supervised.kill_worker():
                outcome.kills["worker"] += 1
        stop.set()
        await asyncio.gather(*clients)
        outcome.restarts += await restarts_of(supervised.url)
    finally:
        stop.set()
        with supervised.server:
            pass
    return outcome


async def restarts_of(url: str) -> int:
    """Return how many times the running server has started a worker anew."""
    client = Client(url)
    reply = await client.send("GET", "/status")
    client.close()
    return sum(model["restarts"] for model in json.loads(reply.body)["models"])


@dataclass(frozen=True)
class Sender:
    """A client that sends one request after the other, each until it is answered."""

    url: str
    workload: Workload
    each: int
    outcome: Outcome

    async def send_until(self, stop: asyncio.Event, seed: int) -> None:
        """Send random texts until `stop`."""
        client, chance = Client(self.url, resend=False), random.Random(seed)
        while not stop.is_set():
            chosen = [chance.randrange(len(self.workload.texts)) for _ in range(self.each)]
            await self._send(client, chosen)
        client.close()

    async def _send(self, client: Client, chosen: list[int]) -> None:
        path, body = self.workload.request(chosen)
        end, attempt = time.monotonic() + PATIENCE, 0
        while time.monotonic() < end:
            reply = await self._attempt(client, path, json.dumps(body).encode())
            if reply is not None:
                self.outcome.answered += 1
                self.outcome.retried += attempt > 0
                self.outcome.wrong += not self.workload.is_right(chosen, json.loads(reply.body))
                return
            attempt += 1
            await asyncio.sleep(0.5)
        self.outcome.lost += 1

    async def _attempt(self, client: Client, path: str, body: bytes) -> Reply | None:
        """Send a request once, and return its answer if it is one."""
        try:
            async with asyncio.timeout(90):
                reply = await client.send("POST", path, body)
        except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
            self.outcome.failures[type(error).__name__] += 1
            return None
        if reply.status == 200:
            return reply
        self.outcome.failures[str(reply.status)] += 1
        if reply.status not in (429, 503, 504):
            self.outcome.unexpected.append(f"{reply.status}: {reply.body[:200]!r}")
        return None


def summary(outcome: Outcome) -> dict[str, Any]:
    """Return the numbers to report."""
    return {
        "kills": dict(outcome.kills),
        "answered": outcome.answered,
        "sent_again_by_their_client": outcome.retried,
        "lost": outcome.lost,
        "wrong": outcome.wrong,
        "attempts_without_an_answer": dict(outcome.failures),
        "unexpected": outcome.unexpected[:20],
        "workers_started_anew": outcome.restarts,
        "seconds_until_a_server_was_back": outcome.back_seconds,
        "orphans": outcome.orphans,
    }


if __name__ == "__main__":
    main()
