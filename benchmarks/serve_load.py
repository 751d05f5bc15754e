"""Load a server with more than it can take, and check every answer against those of the library.

    python benchmarks/serve_load.py MODEL --seconds 20 [--load 2] [--threads 1] [--output load.json]

Prints what was accepted and refused, the latency of what was accepted, and the throughput beside `predict` offline,
which is timed in the same run, before and after. Requests come at a fixed pace, whether or not earlier ones were
answered. Client and server share the machine, so the client's own work lowers what the server can do by the clock; the
same per second of processor time, of server and worker together, is beside it. With --baseline a usual server
(benchmarks/dynamic_batching_server.py) gets the same load.
"""

import argparse
import asyncio
import base64
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from serving_client import Client, RunningServer

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
    parser.add_argument("--baseline", type=Path, help="folder of a dense embedder: a usual server runs it, same load")
    parser.add_argument("--output", type=Path, help="file for the outcome as JSON")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    texts = embedded_texts(options.number, options.texts)
    model = hashee.load(options.model)
    workload, before = offline(model, texts)
    pace = options.load * before.by_clock / options.each
    arguments = ["--threads", options.threads, "--max-latency-ms", options.max_latency_ms]
    if options.max_queue_macs is not None:
        arguments += ["--max-queue-macs", options.max_queue_macs]
    with RunningServer(options.model, *arguments) as server:
        loaded = under_load(server, workload, pace, options)
    report: dict[str, Any] = {}
    if options.baseline is not None:
        program = Path(__file__).with_name("dynamic_batching_server.py")
        with RunningServer(options.baseline, "--threads", options.threads, program=(program,)) as other:
            baseline = under_load(other, dense_workload(options.baseline, texts), pace, options)
        report["baseline"] = summary(baseline, options, before)
    _, after = offline(model, texts)
    report = summary(loaded, options, before.mean(after)) | report
    print(json.dumps(report, indent=1))
    if options.output is not None:
        options.output.write_text(json.dumps(report | {"machine": describe_machine(options.threads)}, indent=1) + "\n")
    if loaded.outcome.wrong or loaded.died or not loaded.outcome.latencies:
        sys.exit(1)


@dataclass(frozen=True)
class Rates:
    """Texts per second of the clock, and of processor time."""

    by_clock: float
    by_processor: float

    def mean(self, other: "Rates") -> "Rates":
        """Return the mean of two measurements."""
        return Rates((self.by_clock + other.by_clock) / 2, (self.by_processor + other.by_processor) / 2)


@dataclass(frozen=True)
class Loaded:
    """What became of a server under load."""

    outcome: Outcome
    status: dict[str, Any]
    cpu_seconds: dict[str, float]
    died: bool


def under_load(server: RunningServer, workload: Workload, pace: float, options: argparse.Namespace) -> Loaded:
    """Send requests to a server for some seconds."""
    used = cpu_seconds(server)
    outcome, status = asyncio.run(load(server.url, workload, pace, options.seconds, options.each))
    died = server.process.poll() is not None
    now = used if died else cpu_seconds(server)
    return Loaded(outcome, status, {name: round(now[name] - used[name], 2) for name in now}, died)


def dense_workload(folder: Path, texts: list[str]) -> Workload:
    """Return the texts with their embeddings by sentence-transformers."""
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415  # takes seconds, only for the baseline

    model = SentenceTransformer(str(folder), device="cpu")
    return Workload(texts, [*model.encode(texts, normalize_embeddings=True)], "embedding", folder.name)


def embedded_texts(number: int, path: Path | None = None) -> list[str]:
    """Return the first texts of a file, or of Rotten Tomatoes."""
    source = read_texts(path) if path else (text for text, _ in rotten_tomatoes())
    return list(islice((text for text in source if isinstance(text, str)), number))


def offline(model: Any, texts: list[str]) -> tuple[Workload, Rates]:
    """Return the texts with their outputs, and how many a second `predict` gives."""
    name = type(model).__name__
    head = "embedding" if name.endswith("Model") else "reranker" if model.config.num_labels == 1 else "classifier"
    asked: list[Any] = [(QUERY, text) for text in texts] if head == "reranker" else texts
    list(model.predict(asked[:64], progress=False))
    start, used = time.perf_counter(), time.process_time()
    outputs = list(model.predict(asked, progress=False))
    seconds, used = time.perf_counter() - start, time.process_time() - used
    if head == "embedding":
        means = [states.mean(axis=0) for states in outputs]
        outputs = [mean / np.linalg.norm(mean) for mean in means]
    elif head == "classifier":
        order = np.argsort([str(model.config.id2label[number]) for number in range(model.config.num_labels)])
        outputs = [logits[order] for logits in outputs]
    return Workload(texts, outputs, head, Path(model.config.name_or_path).absolute().name), Rates(
        len(texts) / seconds, len(texts) / max(used, 1e-3)
    )


def cpu_seconds(server: RunningServer) -> dict[str, float]:
    """Return the processor time of server, worker and this client so far."""
    times = {
        "server": [psutil.Process(server.process.pid)],
        "worker": [*map(psutil.Process, server.workers())],
        "client": [psutil.Process()],
    }
    return {name: sum(sum(each.cpu_times()[:2]) for each in group) for name, group in times.items()}


async def load(url: str, workload: Workload, pace: float, seconds: float, each: int) -> tuple[Outcome, dict[str, Any]]:
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
    return outcome, await own_counts(client)


async def own_counts(client: Client) -> dict[str, Any]:
    """Return what the server counted itself, if it is ours."""
    reply = await client.send("GET", "/status")
    if reply.status != 200:
        return {}
    metrics = (await client.send("GET", "/metrics")).body
    lines = [line.split() for line in metrics.decode().splitlines() if not line.startswith("#")]
    counts = {line[0].partition("{")[0].removeprefix("hashee_"): float(line[1]) for line in lines}
    names = ("batch_texts_count", "batch_texts_sum", "run_seconds_total")
    return {**json.loads(reply.body)["models"][0], **{name: round(counts[name], 2) for name in names}}


async def ask(client: Client, workload: Workload, chosen: Sequence[int], outcome: Outcome) -> None:
    """Send one request and note what became of it."""
    path, body = workload.request(chosen)
    start = time.perf_counter()
    try:
        reply = await client.send("POST", path, json.dumps(body).encode())
    except (OSError, asyncio.IncompleteReadError) as error:
        outcome.statuses[type(error).__name__] += 1
        return
    outcome.statuses[str(reply.status)] += 1
    if reply.status == 200:
        outcome.latencies.append(time.perf_counter() - start)
        if "x-total-time" in reply.headers:
            outcome.in_server.append(float(reply.headers["x-total-time"]) / 1000)
        outcome.wrong += not workload.is_right(chosen, json.loads(reply.body))
    elif reply.status == 429:
        outcome.retry_after.append(int(reply.headers["retry-after"]))


def milliseconds(seconds: Sequence[float], percent: float) -> float | None:
    """Return a percentile; None where nothing was measured, as with servers that do not tell."""
    return round(1000 * float(np.percentile(seconds, percent)), 1) if seconds else None


def summary(loaded: Loaded, options: argparse.Namespace, offline_rates: Rates) -> dict[str, Any]:
    """Return the numbers to report."""
    outcome = loaded.outcome
    answered = len(outcome.latencies) * options.each
    requests = sum(outcome.statuses.values())
    used = loaded.cpu_seconds
    # Others use the machine as well, the client first: processor time says what the server itself needs.
    rates = Rates(answered / options.seconds, answered / max(used["server"] + used["worker"], 0.01))
    return {
        "seconds": options.seconds,
        "load": options.load,
        "texts_per_request": options.each,
        "requests": requests,
        "not_sent": outcome.not_sent,
        "statuses": dict(outcome.statuses),
        "share_429": round(outcome.statuses["429"] / max(requests, 1), 4),
        "wrong": outcome.wrong,
        "died": loaded.died,
        "p50_ms": milliseconds(outcome.latencies, 50),
        "p99_ms": milliseconds(outcome.latencies, 99),
        "p50_in_server_ms": milliseconds(outcome.in_server, 50),
        "p99_in_server_ms": milliseconds(outcome.in_server, 99),
        "retry_after": dict(Counter(outcome.retry_after)),
        "cpu_seconds": used,
        "texts_per_second": round(rates.by_clock, 1),
        "texts_per_cpu_second": round(rates.by_processor, 1),
        "texts_per_worker_cpu_second": round(answered / used["worker"], 1) if used["worker"] else None,
        "offline": {name: round(value, 1) for name, value in asdict(offline_rates).items()},
        "share_of_offline_by_clock": round(rates.by_clock / offline_rates.by_clock, 3),
        "share_of_offline_by_processor": round(rates.by_processor / offline_rates.by_processor, 3),
        "status": loaded.status,
    }


if __name__ == "__main__":
    main()
