"""A baseline that takes part: what it is told, its process, and how it is loaded and warmed up."""

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hashee.bench.baselines import Baseline, Outputs
from hashee.bench.batches import TokenizedTexts, cut
from hashee.bench.cost import Work
from hashee.bench.process import WorkerFailed, WorkerProcess
from hashee.bench.protocol import Benchmark, ClockJob
from hashee.bench.workloads import Workload
from hashee.cost.machine import memory_mb

ROUND_LIMIT = 3600.0
# Below this share of free memory the machine would start to swap, and all clocks with it.
FREE_MEMORY = 0.08


@dataclass(frozen=True)
class Setup:
    """What all baselines of one batch size have in common."""

    benchmark: Benchmark
    workload: Workload
    config: Any
    batch_size: int
    tokens: TokenizedTexts
    folder: Path
    modules: tuple[str, ...]

    def job(self, baseline: Baseline) -> ClockJob:
        """Return what the worker of a baseline is told."""
        return ClockJob(
            baseline=baseline.name,
            depth=baseline.layers(self.config.num_hidden_layers),
            order=baseline.order,
            batch_size=self.batch_size,
            threads=self.benchmark.threads,
            texts=str(self.folder / "texts.json"),
            model=str(self.folder.parent / "model"),
            table=str(self.folder.parent / "table"),
            artifacts=str(self.folder.parent),
            modules=self.modules,
        )

    def work(self, baseline: Baseline) -> Work:
        """Return what a baseline runs in one round."""
        job = self.job(baseline)
        batches = cut(self.tokens, self.batch_size, baseline.order)
        return Work(self.config, job.depth, self.tokens, batches, self.workload.table)


@dataclass
class Entry:
    """A baseline that takes part: its worker and what was measured so far, or why it was dropped."""

    baseline: Baseline
    worker: WorkerProcess | None = None
    outputs: Outputs | None = None
    seconds: list[float] = field(default_factory=list)
    peak_memory_mb: float = 0.0
    skipped: str | None = None

    def drop(self, reason: str) -> None:
        """Stop the worker and measure this baseline no further."""
        self.skipped = reason
        if self.worker is not None:
            self.worker.stop()


def load(setup: Setup, entry: Entry, stack: ExitStack, prepared: dict[str, str | None]) -> str | None:
    """Prepare and load one baseline; return why that failed, if it did. prepared: outcome of what was made before."""
    baseline, job = entry.baseline, setup.job(entry.baseline)
    log = setup.folder / f"{baseline.name}.log"
    reason = baseline.missing()
    if reason is None and baseline.prepare is not None:
        if baseline.prepare not in prepared:
            prepared[baseline.prepare] = prepare(baseline, job, log)
        reason = prepared[baseline.prepare]
    if reason is not None:
        return reason
    entry.worker = WorkerProcess(baseline.name, job.threads, log, light=not baseline.needs_torch)
    stack.callback(entry.worker.stop)
    try:
        entry.worker.ask("load", baseline.load_limit, job=job.to_dict())
    except WorkerFailed as error:
        return str(error)
    return None


def prepare(baseline: Baseline, job: ClockJob, log: Path) -> str | None:
    """Make a baseline's shared files in a process that ends afterwards; return why that failed, if it did."""
    try:
        with WorkerProcess(baseline.name, job.threads, log.with_suffix(".prepare.log")) as worker:
            worker.ask("prepare", ROUND_LIMIT, job=job.to_dict())
    except WorkerFailed as error:
        return f"cannot be prepared: {error}"
    return None


def warm_up(entry: Entry) -> None:
    """Run one untimed round and keep its outputs."""
    assert entry.worker is not None
    try:
        entry.worker.ask("first", entry.baseline.load_limit)
        reply = entry.worker.ask("round", ROUND_LIMIT, outputs=True)
    except WorkerFailed as error:
        entry.drop(str(error))
        return
    entry.outputs = np.asarray(reply["outputs"], dtype=np.float32)
    free, total = memory_mb("MemAvailable"), memory_mb("MemTotal")
    if free is not None and total is not None and free < FREE_MEMORY * total:
        entry.drop(f"memory ran short with it: {free:,.0f} MB left; run it alone with --baselines")
