"""The protocol: load every peer in its own process, compare their answers, then clock them in interleaved rounds."""

import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from hashee.bench.batches import Tokens, cut, draw
from hashee.bench.cost import COSTS, Work
from hashee.bench.peers import EXIT_LAYERS, REFERENCE, TRAINING_REFERENCE, Outputs, Peer, select
from hashee.bench.process import WorkerFailed, WorkerProcess
from hashee.bench.protocol import Benchmark, Job, Report, Row, Timing, add_ratios, fill_row
from hashee.bench.workloads import Workload, load_workload, save_model
from hashee.cost.machine import describe_machine, memory_mb

SGEMM_SIZE = 2048
SGEMM_REPEATS = 3
ROUND_LIMIT = 3600.0
# Threads of some libraries spin on for a moment after their last batch.
PAUSE = 0.05
# float32 peers of one model must agree; further apart is another answer, whose speed means nothing.
TOLERANCE = 1e-3
# Below this share of free memory the machine would start to swap, and all clocks with it.
FREE_MEMORY = 0.08


@dataclass(frozen=True)
class Course:
    """What all peers of one batch size have in common."""

    benchmark: Benchmark
    workload: Workload
    config: Any
    batch_size: int
    tokens: Tokens
    folder: Path
    modules: tuple[str, ...]

    def job(self, peer: Peer) -> Job:
        """Return what the worker of a peer is told."""
        return Job(
            peer=peer.name,
            depth=peer.layers(self.config.num_hidden_layers),
            order=peer.order,
            batch_size=self.batch_size,
            threads=self.benchmark.threads,
            texts=str(self.folder / "texts.json"),
            model=str(self.folder.parent / "model"),
            table=str(self.folder.parent / "table"),
            artifacts=str(self.folder.parent),
            modules=self.modules,
        )

    def work(self, peer: Peer) -> Work:
        """Return what a peer runs in one round."""
        job = self.job(peer)
        batches = cut(self.tokens, self.batch_size, peer.order)
        return Work(self.config, job.depth, self.tokens, batches, self.workload.table)


@dataclass
class Entry:
    """A peer in the running: its worker and what was measured so far, or why it is out."""

    peer: Peer
    worker: WorkerProcess | None = None
    outputs: Outputs | None = None
    seconds: list[float] = field(default_factory=list)
    peak_memory_mb: float = 0.0
    skipped: str | None = None

    def drop(self, reason: str) -> None:
        """Take the peer out of the running."""
        self.skipped = reason
        if self.worker is not None:
            self.worker.stop()


def run_benchmark(
    benchmark: Benchmark, folder: Path, report: Report = lambda *_: None, modules: tuple[str, ...] = ()
) -> Iterator[list[Row]]:
    """Measure all peers at each batch size and yield the rows of one batch size after the other.

    folder: for weights, exported graphs and logs. modules: those that register further peers, for the workers.
    """
    start = time.monotonic()
    peers = select(benchmark.model, benchmark.training, benchmark.peers)
    report("saving the model", 0, 1)
    config = save_model(benchmark.model, folder / "model")
    report(f"reading texts of {benchmark.workload} and counting tokens", 0, 1)
    workload = load_workload(benchmark.workload, min(EXIT_LAYERS, config.num_hidden_layers))
    workload.table.save(folder / "table")
    for number, batch_size in enumerate(benchmark.batch_sizes):
        tokens = draw(workload.tokens, benchmark.texts or workload.texts, batch_size, benchmark.seed)
        own = folder / f"batch-{batch_size}"
        own.mkdir()
        tokens.save(own / "texts.json")
        course = Course(benchmark, workload, config, batch_size, tokens, own, modules)

        def overall(what: str, done: int, steps: int, number: int = number, size: int = batch_size) -> None:
            sizes = len(benchmark.batch_sizes)
            which = f"batch {size}, " if sizes > 1 else ""
            report(f"{which}{what}", number * steps + done, sizes * steps)

        yield measure(course, peers, overall, start)


def measure(course: Course, peers: Sequence[Peer], report: Report, start: float) -> list[Row]:
    """Measure all peers at one batch size."""
    benchmark = course.benchmark
    steps = len(peers) * (2 + benchmark.rounds)
    entries = [Entry(peer) for peer in peers]
    with ExitStack() as stack:
        load_all(course, entries, stack, report, steps)
        for number, entry in enumerate(entries):
            if entry.skipped is None:
                report(f"warming up {entry.peer.name}", len(peers) + number, steps)
                warm_up(entry)
        differences = compare(entries)

        report("measuring the peak of this machine", 2 * len(peers), steps)
        sgemm = stack.enter_context(WorkerProcess("sgemm", benchmark.threads, course.folder / "sgemm.log"))
        peaks: list[float] = []
        duration = 0.0
        for number in range(benchmark.rounds):
            began = time.monotonic()
            budget = benchmark.budget_seconds
            if number and budget is not None and began - start + duration > budget:
                break
            peaks.append(sgemm.ask("sgemm", ROUND_LIMIT, size=SGEMM_SIZE, repeats=SGEMM_REPEATS)["gflops"])
            for place, entry in enumerate(shuffled(entries, benchmark.seed, number)):
                done = len(peers) * (2 + number) + place
                report(f"round {number + 1} of {benchmark.rounds}: {entry.peer.name}", done, steps)
                clock(entry)
            duration = time.monotonic() - began
        peaks.append(sgemm.ask("sgemm", ROUND_LIMIT, size=SGEMM_SIZE, repeats=SGEMM_REPEATS)["gflops"])
        for entry in entries:
            remember_memory(entry)
    return rows_of(course, entries, differences, median(peaks))


def shuffled(entries: Sequence[Entry], seed: int, number: int) -> list[Entry]:
    """Return the entries still in the running in the order of one round."""
    running = [entry for entry in entries if entry.skipped is None]
    random.Random(f"{seed}-{number}").shuffle(running)
    return running


def load_all(course: Course, entries: Sequence[Entry], stack: ExitStack, report: Report, steps: int) -> None:
    """Start and load the worker of every peer; no clock runs yet, so different depths are loaded at the same time."""
    by_depth: dict[int, list[Entry]] = {}
    for entry in entries:
        by_depth.setdefault(entry.peer.layers(course.config.num_hidden_layers), []).append(entry)
    loaded: list[str] = []

    def load_depth(same_depth: list[Entry]) -> None:
        # Peers of one depth share files, so they are made one after the other.
        prepared: dict[str, str | None] = {}
        for entry in same_depth:
            report(f"loading {entry.peer.name}", len(loaded), steps)
            reason = load(course, entry, stack, prepared)
            if reason is not None:
                entry.drop(reason)
            loaded.append(entry.peer.name)

    with ThreadPoolExecutor(max_workers=course.benchmark.threads) as pool:
        list(pool.map(load_depth, by_depth.values()))


def load(course: Course, entry: Entry, stack: ExitStack, prepared: dict[str, str | None]) -> str | None:
    """Prepare and load one peer; return why it is out, if it is. prepared: outcome of what was made before."""
    peer, job = entry.peer, course.job(entry.peer)
    log = course.folder / f"{peer.name}.log"
    reason = peer.missing()
    if reason is None and peer.prepare is not None:
        if peer.prepare not in prepared:
            prepared[peer.prepare] = prepare(peer, job, log)
        reason = prepared[peer.prepare]
    if reason is not None:
        return reason
    entry.worker = WorkerProcess(peer.name, job.threads, log, light=not peer.needs_torch)
    stack.callback(entry.worker.stop)
    try:
        entry.worker.ask("load", peer.load_limit, job=job.to_dict())
    except WorkerFailed as error:
        return str(error)
    return None


def prepare(peer: Peer, job: Job, log: Path) -> str | None:
    """Make a peer's shared files in a process that ends afterwards; return why that failed, if it did."""
    try:
        with WorkerProcess(peer.name, job.threads, log.with_suffix(".prepare.log")) as worker:
            worker.ask("prepare", ROUND_LIMIT, job=job.to_dict())
    except WorkerFailed as error:
        return f"cannot be prepared: {error}"
    return None


def warm_up(entry: Entry) -> None:
    """Run one untimed round and keep its outputs."""
    assert entry.worker is not None
    try:
        entry.worker.ask("first", entry.peer.load_limit)
        answer = entry.worker.ask("round", ROUND_LIMIT, outputs=True)
    except WorkerFailed as error:
        entry.drop(str(error))
        return
    entry.outputs = np.asarray(answer["outputs"], dtype=np.float32)
    free, total = memory_mb("MemAvailable"), memory_mb("MemTotal")
    if free is not None and total is not None and free < FREE_MEMORY * total:
        entry.drop(f"memory ran short with it: {free:,.0f} MB left; run it alone with --peers")


def compare(entries: Sequence[Entry]) -> dict[str, tuple[float, str]]:
    """Return how far each peer is from the first that must answer alike; float32 ones that are too far are out."""
    anchors: dict[tuple[str, str], Entry] = {}
    differences: dict[str, tuple[float, str]] = {}
    for entry in entries:
        if entry.outputs is None or entry.skipped is not None or entry.peer.answers is None:
            continue
        anchor = anchors.setdefault((entry.peer.answers, entry.peer.depth), entry)
        if anchor is entry or anchor.outputs is None:
            continue
        difference = float(np.abs(entry.outputs - anchor.outputs).max())
        differences[entry.peer.name] = (difference, anchor.peer.name)
        if entry.peer.dtype == "float32" and not difference <= TOLERANCE:
            entry.drop(f"its outputs differ from {anchor.peer.name} by {difference:.2g}, so its speed means nothing")
    return differences


def clock(entry: Entry) -> None:
    """Time one round of one peer while all others wait."""
    assert entry.worker is not None
    time.sleep(PAUSE)
    try:
        entry.seconds.append(entry.worker.ask("round", ROUND_LIMIT)["seconds"])
    except WorkerFailed as error:
        entry.drop(str(error))


def remember_memory(entry: Entry) -> None:
    """Ask a peer that has run all rounds for its peak memory."""
    if entry.skipped is None and entry.worker is not None:
        try:
            entry.peak_memory_mb = entry.worker.ask("memory", ROUND_LIMIT)["peak_memory_mb"]
        except WorkerFailed as error:
            entry.drop(str(error))


def rows_of(
    course: Course, entries: Sequence[Entry], differences: dict[str, tuple[float, str]], sgemm_gflops: float
) -> list[Row]:
    """Turn what was measured into rows, skipped peers included."""
    machine = describe_machine(course.benchmark.threads)
    rows = []
    for entry in entries:
        row = replace(blank_row(course, entry.peer), machine=machine, skipped=entry.skipped)
        if entry.peer.name in differences:
            difference, anchor = differences[entry.peer.name]
            row = replace(row, max_difference=difference, compared_with=anchor)
        if entry.skipped is None:
            macs = COSTS[entry.peer.cost](course.work(entry.peer))
            row = fill_row(row, Timing(tuple(entry.seconds), macs, entry.peak_memory_mb), sgemm_gflops)
        rows.append(row)
    return add_ratios(rows, TRAINING_REFERENCE if course.benchmark.training else REFERENCE)


def blank_row(course: Course, peer: Peer) -> Row:
    """Return a row that says what ran, without numbers."""
    return Row(
        name=peer.name,
        workload=course.workload.name,
        model=course.benchmark.model,
        batch_size=course.batch_size,
        depth=peer.layers(course.config.num_hidden_layers),
        order=peer.order,
        dtype=peer.dtype,
        task="training" if peer.training else "inference",
        texts=len(course.tokens),
        tokens=sum(course.tokens.lengths),
        threads=course.benchmark.threads,
        note=course.workload.note,
    )
