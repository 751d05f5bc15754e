"""Load a server with more than it can take, and check every answer against those of the library.

    python benchmarks/serve_load.py MODEL --seconds 20 [--load 2] [--threads 1] [--output load.json]

Prints what was accepted and refused, the latency of what was accepted, and the throughput beside `predict` offline,
which is timed in the same run, before and after. Requests come at a fixed pace, whether or not earlier ones were
answered. Client and server share the machine, so the client's own work lowers what the server can do.
"""

import argparse
import asyncio
import base64
import json
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

import hashee
from hashee.cost.machine import describe_machine
from hashee.data.texts import read_texts
from hashee.embedded import rotten_tomatoes

TOLERANCE = 1e-4
QUERY = "a film that is worth the time"
MOST_OPEN = 1000
"""Requests that are under way at once; what would exceed it is counted as not sent."""


@dataclass(frozen=True)
class Workload:
    """Texts with their offline outputs, and how a model is asked for them."""

    texts: list[str]
    expected: list[Any]
    head: str
    model: str

    def request(self, chosen: Sequence[int]) -> tuple[str, dict[str, Any]]:
        """Return path and body that ask for some texts."""
        texts = [self.texts[index] for index in chosen]
        if self.head == "embedding":
            return "/v1/embeddings", {"model": self.model, "input": texts, "encoding_format": "base64"}
        if self.head == "reranker":
            return "/rerank", {"query": QUERY, "texts": texts, "raw_scores": True, "truncate": True}
        return "/predict", {"inputs": [[text] for text in texts], "raw_scores": True, "truncate": True}

    def is_right(self, chosen: Sequence[int], answer: Any) -> bool:
        """Compare an answer with the offline outputs."""
        expected = np.array([self.expected[index] for index in chosen])
        if self.head == "embedding":
            rows = [base64.b64decode(each["embedding"]) for each in answer["data"]]
            found = np.array([np.frombuffer(row, "<f4") for row in rows])
        elif self.head == "reranker":
            found = np.array([[each["score"]] for each in sorted(answer, key=lambda each: each["index"])])
        else:
            # Labels come by falling score; sorted by name they are in the order of `expected`.
            found = np.array(
                [[each["score"] for each in sorted(row, key=lambda each: each["label"])] for row in answer]
            )
        return found.shape == expected.shape and bool(np.abs(found - expected).max() <= TOLERANCE)


@dataclass
class Outcome:
    """What became of the requests."""

    statuses: Counter[str] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)
    """Seconds, of those that were answered."""
    in_server: list[float] = field(default_factory=list)
    """The same, from queue to output, without HTTP, tokenization and the client."""
    retry_after: list[int] = field(default_factory=list)
    wrong: int = 0
    not_sent: int = 0


def main() -> None:
    """Run the load and print its outcome."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--load", type=float, default=2, help="times the offline throughput")
    parser.add_argument("--texts", type=Path, help="file of texts; default: Rotten Tomatoes")
    parser.add_argument("--number", type=int, default=2000, help="different texts")
    parser.add_argument("--each", type=int, default=8, help="texts of a request")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--max-latency-ms", type=float, default=200)
    parser.add_argument("--max-queue-macs", type=int)
    parser.add_argument("--output", type=Path, help="file for the outcome as JSON")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    source = read_texts(options.texts) if options.texts else (text for text, _ in rotten_tomatoes())
    texts = list(islice((text for text in source if isinstance(text, str)), options.number))
    model = hashee.load(options.model)
    workload, before = offline(model, texts)
    arguments = ["--threads", str(options.threads), "--max-latency-ms", str(options.max_latency_ms)]
    if options.max_queue_macs is not None:
        arguments += ["--max-queue-macs", str(options.max_queue_macs)]
    command = [sys.executable, "-m", "hashee", "serve", str(options.model), "--port", "0", *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            url = address(server)
            pace = options.load * before / options.each
            used = cpu_seconds(server.pid)
            outcome, status = asyncio.run(load(url, workload, pace, options.seconds, options.each))
            died = server.poll()
            used = {name: round(seconds - used[name], 2) for name, seconds in cpu_seconds(server.pid).items()}
        finally:
            server.terminate()
    start = time.process_time()
    _, after = offline(model, texts)
    used["offline"] = round(time.process_time() - start, 2)
    report = summary(outcome, options, (before, after)) | {"status": status, "server_died": died is not None}
    # On a machine that others use as well, a second of processor time compares better than one of the clock.
    report["cpu_seconds"] = used
    report["texts_per_cpu_second"] = {
        "worker": round(len(outcome.latencies) * options.each / max(used["worker"], 0.01), 1),
        "offline": round(len(texts) / max(used["offline"], 0.01), 1),
    }
    print(json.dumps(report, indent=1))
    if options.output is not None:
        options.output.write_text(json.dumps(report | {"machine": describe_machine(options.threads)}, indent=1) + "\n")
    if outcome.wrong or died is not None or not outcome.latencies:
        sys.exit(1)


def offline(model: Any, texts: list[str]) -> tuple[Workload, float]:
    """Return the texts with their outputs, and how many a second `predict` gives."""
    name = type(model).__name__
    head = "embedding" if name.endswith("Model") else "reranker" if model.config.num_labels == 1 else "classifier"
    asked: list[Any] = [(QUERY, text) for text in texts] if head == "reranker" else texts
    list(model.predict(asked[:64], progress=False))
    start = time.perf_counter()
    outputs = list(model.predict(asked, progress=False))
    seconds = time.perf_counter() - start
    if head == "embedding":
        means = [states.mean(axis=0) for states in outputs]
        outputs = [mean / np.linalg.norm(mean) for mean in means]
    elif head == "classifier":
        order = np.argsort([str(model.config.id2label[number]) for number in range(model.config.num_labels)])
        outputs = [logits[order] for logits in outputs]
    return Workload(texts, outputs, head, Path(model.config.name_or_path).absolute().name), len(texts) / seconds


def cpu_seconds(server: int) -> dict[str, float]:
    """Return the processor time of server, worker and this client so far."""
    parent = psutil.Process(server)
    workers = [each for each in parent.children() if "spawn_main" in " ".join(each.cmdline())]
    times = {"server": [parent], "worker": workers, "client": [psutil.Process()]}
    return {name: sum(sum(each.cpu_times()[:2]) for each in group) for name, group in times.items()}


def address(server: "subprocess.Popen[str]") -> str:
    """Return the address of a server once it listens."""
    assert server.stderr is not None
    said = []
    for line in server.stderr:
        said.append(line)
        if found := re.search(r"serving on (\S+)", line):
            return found[1]
    sys.exit("the server did not start: " + "".join(said))


async def load(url: str, workload: Workload, pace: float, seconds: float, each: int) -> tuple[Outcome, Any]:
    """Send requests at a pace for some seconds, and wait for their answers."""
    outcome, chance = Outcome(), random.Random(0)
    client = Client(url)
    open_now: set[asyncio.Task[None]] = set()
    start = time.perf_counter()
    sent = 0
    while (now := time.perf_counter() - start) < seconds:
        while sent < now * pace:
            sent += 1
            if len(open_now) >= MOST_OPEN:
                outcome.not_sent += 1
                continue
            chosen = [chance.randrange(len(workload.texts)) for _ in range(each)]
            task = asyncio.ensure_future(ask(client, workload, chosen, outcome))
            open_now.add(task)
            task.add_done_callback(open_now.discard)
        await asyncio.sleep(0.001)
    if open_now:
        await asyncio.wait(open_now)
    _, _, status = await client.send("GET", "/status")
    _, _, metrics = await client.send("GET", "/metrics")
    lines = [line.split() for line in metrics.decode().splitlines() if not line.startswith("#")]
    counts = {line[0].partition("{")[0].removeprefix("hashee_"): float(line[1]) for line in lines}
    names = ("batch_texts_count", "batch_texts_sum", "run_seconds_total")
    return outcome, {**json.loads(status)["models"][0], **{name: round(counts[name], 2) for name in names}}


class Client:
    """As little of HTTP as it takes: a client that is slower than the server would measure itself."""

    def __init__(self, url: str) -> None:
        host, _, port = url.removeprefix("http://").rpartition(":")
        self._address = (host.strip("[]"), int(port))
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def send(self, method: str, path: str, body: bytes = b"") -> tuple[int, dict[str, str], bytes]:
        """Send a request on a free connection, or a new one, and return status, headers and body."""
        fields = f"Host: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        head = f"{method} {path} HTTP/1.1\r\n{fields}\r\n\r\n"
        while True:
            was_free = bool(self._free)
            reader, writer = self._free.pop() if was_free else await asyncio.open_connection(*self._address)
            try:
                writer.write(head.encode() + body)
                lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
                answer = await reader.readexactly(int(headers["content-length"]))
            except (OSError, asyncio.IncompleteReadError):
                writer.close()
                if was_free:
                    continue  # the server closes connections that were idle
                raise
            self._free.append((reader, writer))
            return int(lines[0].split()[1]), headers, answer


async def ask(client: Client, workload: Workload, chosen: Sequence[int], outcome: Outcome) -> None:
    """Send one request and note what became of it."""
    path, body = workload.request(chosen)
    start = time.perf_counter()
    try:
        status, headers, answer = await client.send("POST", path, json.dumps(body).encode())
    except (OSError, asyncio.IncompleteReadError) as error:
        outcome.statuses[type(error).__name__] += 1
        return
    outcome.statuses[str(status)] += 1
    if status == 200:
        outcome.latencies.append(time.perf_counter() - start)
        outcome.in_server.append(float(headers["x-total-time"]) / 1000)
        outcome.wrong += not workload.is_right(chosen, json.loads(answer))
    elif status == 429:
        outcome.retry_after.append(int(headers["retry-after"]))


def summary(outcome: Outcome, options: argparse.Namespace, offline_rates: tuple[float, float]) -> dict[str, Any]:
    """Return the numbers to report."""
    answered = len(outcome.latencies) * options.each
    p50, p99 = np.percentile(outcome.latencies, [50, 99]) if outcome.latencies else (0.0, 0.0)
    inner = np.percentile(outcome.in_server, [50, 99]) if outcome.in_server else (0.0, 0.0)
    requests = sum(outcome.statuses.values())
    rate, offline_rate = answered / options.seconds, sum(offline_rates) / 2
    return {
        "seconds": options.seconds,
        "load": options.load,
        "texts_per_request": options.each,
        "requests": requests,
        "not_sent": outcome.not_sent,
        "statuses": dict(outcome.statuses),
        "share_429": round(outcome.statuses["429"] / max(requests, 1), 4),
        "wrong": outcome.wrong,
        "p50_ms": round(1000 * float(p50), 1),
        "p99_ms": round(1000 * float(p99), 1),
        "p50_in_server_ms": round(1000 * float(inner[0]), 1),
        "p99_in_server_ms": round(1000 * float(inner[1]), 1),
        "retry_after": dict(Counter(outcome.retry_after)),
        "texts_per_second": round(rate, 1),
        "offline_texts_per_second": [round(each, 1) for each in offline_rates],
        "share_of_offline": round(rate / offline_rate, 3),
    }


if __name__ == "__main__":
    main()
