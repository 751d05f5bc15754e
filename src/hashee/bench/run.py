"""The protocol: baselines are loaded in processes of their own, compared in their outputs, and clocked in turns."""

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np

from hashee.bench.baselines import EXIT_LAYERS, REFERENCE, TRAINING_REFERENCE, Baseline, select
from hashee.bench.batches import draw
from hashee.bench.cost import COSTS
from hashee.bench.entries import ROUND_LIMIT, Entry, Setup, load, warm_up
from hashee.bench.process import WorkerFailed, WorkerProcess
from hashee.bench.protocol import Benchmark, Report, Row, Timing, add_ratios, fill_row
from hashee.bench.quality import Agreement, QualityRun
from hashee.bench.workloads import load_workload, save_model
from hashee.cost.machine import describe_machine

SGEMM_SIZE = 2048
SGEMM_REPEATS = 3
# Threads of some libraries spin on for a moment after their last batch.
PAUSE = 0.05
# float32 baselines of one model must agree; further apart they compute something else, whose speed means nothing.
TOLERANCE = 1e-3


def run_benchmark(
    benchmark: Benchmark, folder: Path, report: Report = lambda *_: None, modules: tuple[str, ...] = ()
) -> Iterator[list[Row]]:
    """Measure all baselines at each batch size and yield the rows of one batch size after the other.

    folder: for weights, exported graphs and logs. modules: those that register further baselines, for the workers.
    """
    start = time.monotonic()
    baselines = select(benchmark.model, benchmark.training, benchmark.baselines)
    report("saving the model", 0, 1)
    config = save_model(benchmark.model, folder / "model")
    report(f"reading texts of {benchmark.workload} and counting tokens", 0, 1)
    workload = load_workload(benchmark.workload, min(EXIT_LAYERS, config.num_hidden_layers))
    workload.table.save(folder / "table")
    agreements = QualityRun(benchmark, workload, folder / "quality", modules).measure(baselines, report)
    for number, batch_size in enumerate(benchmark.batch_sizes):
        tokens = draw(workload.tokens, benchmark.texts or workload.texts, batch_size, benchmark.seed)
        own = folder / f"batch-{batch_size}"
        own.mkdir()
        tokens.save(own / "texts.json")
        setup = Setup(benchmark, workload, config, batch_size, tokens, own, modules)

        def overall(what: str, done: int, steps: int, number: int = number, size: int = batch_size) -> None:
            sizes = len(benchmark.batch_sizes)
            which = f"batch {size}, " if sizes > 1 else ""
            report(f"{which}{what}", number * steps + done, sizes * steps)

        yield [_with_agreement(row, agreements) for row in measure(setup, baselines, overall, start)]


def _with_agreement(row: Row, agreements: Mapping[str, Agreement]) -> Row:
    found = agreements.get(row.name)
    return row if found is None else replace(row, agreement=found.value, agrees_with=found.reference)


def measure(setup: Setup, baselines: Sequence[Baseline], report: Report, start: float) -> list[Row]:
    """Measure all baselines at one batch size."""
    benchmark = setup.benchmark
    steps = len(baselines) * (2 + benchmark.rounds)
    entries = [Entry(baseline) for baseline in baselines]
    with ExitStack() as stack:
        load_all(setup, entries, stack, report, steps)
        for number, entry in enumerate(entries):
            if entry.skipped is None:
                report(f"warming up {entry.baseline.name}", len(baselines) + number, steps)
                warm_up(entry)
        differences = compare(entries)

        report("measuring the peak of this machine", 2 * len(baselines), steps)
        sgemm = stack.enter_context(WorkerProcess("sgemm", benchmark.threads, setup.folder / "sgemm.log"))
        peaks: list[float] = []
        duration = 0.0
        for number in range(benchmark.rounds):
            began = time.monotonic()
            budget = benchmark.budget_seconds
            if number and budget is not None and began - start + duration > budget:
                break
            peaks.append(sgemm.ask("sgemm", ROUND_LIMIT, size=SGEMM_SIZE, repeats=SGEMM_REPEATS)["gflops"])
            for position, entry in enumerate(shuffled(entries, benchmark.seed, number)):
                done = len(baselines) * (2 + number) + position
                report(f"round {number + 1} of {benchmark.rounds}: {entry.baseline.name}", done, steps)
                clock(entry)
            duration = time.monotonic() - began
        peaks.append(sgemm.ask("sgemm", ROUND_LIMIT, size=SGEMM_SIZE, repeats=SGEMM_REPEATS)["gflops"])
        for entry in entries:
            remember_memory(entry)
    return rows_of(setup, entries, differences, median(peaks))


def shuffled(entries: Sequence[Entry], seed: int, number: int) -> list[Entry]:
    """Return the entries that were not dropped in the order of one round."""
    running = [entry for entry in entries if entry.skipped is None]
    random.Random(f"{seed}-{number}").shuffle(running)
    return running


def load_all(setup: Setup, entries: Sequence[Entry], stack: ExitStack, report: Report, steps: int) -> None:
    """Start and load all workers; no clock runs yet, so different depths are loaded at the same time."""
    by_depth: dict[int, list[Entry]] = {}
    for entry in entries:
        by_depth.setdefault(entry.baseline.layers(setup.config.num_hidden_layers), []).append(entry)
    loaded: list[str] = []

    def load_depth(same_depth: list[Entry]) -> None:
        # Baselines of one depth share files, so they are made one after the other.
        prepared: dict[str, str | None] = {}
        for entry in same_depth:
            report(f"loading {entry.baseline.name}", len(loaded), steps)
            reason = load(setup, entry, stack, prepared)
            if reason is not None:
                entry.drop(reason)
            loaded.append(entry.baseline.name)

    with ThreadPoolExecutor(max_workers=setup.benchmark.threads) as pool:
        list(pool.map(load_depth, by_depth.values()))


def compare(entries: Sequence[Entry]) -> dict[str, tuple[float, str]]:
    """Return how far the outputs of each are from the first of its group; float32 ones that are too far are dropped."""
    references: dict[tuple[str, str], Entry] = {}
    differences: dict[str, tuple[float, str]] = {}
    for entry in entries:
        if entry.outputs is None or entry.skipped is not None or entry.baseline.output_group is None:
            continue
        reference = references.setdefault((entry.baseline.output_group, entry.baseline.depth), entry)
        if reference is entry or reference.outputs is None:
            continue
        difference = float(np.abs(entry.outputs - reference.outputs).max())
        differences[entry.baseline.name] = (difference, reference.baseline.name)
        if entry.baseline.dtype == "float32" and not difference <= TOLERANCE:
            entry.drop(
                f"its outputs differ from {reference.baseline.name} by {difference:.2g}, so its speed means nothing"
            )
    return differences


def clock(entry: Entry) -> None:
    """Time one round of one baseline while all others wait."""
    assert entry.worker is not None
    time.sleep(PAUSE)
    try:
        entry.seconds.append(entry.worker.ask("round", ROUND_LIMIT)["seconds"])
    except WorkerFailed as error:
        entry.drop(str(error))


def remember_memory(entry: Entry) -> None:
    """Ask a baseline that has run all rounds for its peak memory."""
    if entry.skipped is None and entry.worker is not None:
        try:
            entry.peak_memory_mb = entry.worker.ask("memory", ROUND_LIMIT)["peak_memory_mb"]
        except WorkerFailed as error:
            entry.drop(str(error))


def rows_of(
    setup: Setup, entries: Sequence[Entry], differences: dict[str, tuple[float, str]], sgemm_gflops: float
) -> list[Row]:
    """Turn what was measured into rows, skipped baselines included."""
    machine = describe_machine(setup.benchmark.threads)
    rows = []
    for entry in entries:
        row = replace(blank_row(setup, entry.baseline), machine=machine, skipped=entry.skipped)
        if entry.baseline.name in differences:
            difference, reference = differences[entry.baseline.name]
            row = replace(row, max_difference=difference, compared_with=reference)
        if entry.skipped is None:
            macs = COSTS[entry.baseline.cost](setup.work(entry.baseline))
            row = fill_row(row, Timing(tuple(entry.seconds), macs, entry.peak_memory_mb), sgemm_gflops)
        rows.append(row)
    return add_ratios(rows, TRAINING_REFERENCE if setup.benchmark.training else REFERENCE)


def blank_row(setup: Setup, baseline: Baseline) -> Row:
    """Return a row that says what ran, without numbers."""
    return Row(
        name=baseline.name,
        workload=setup.workload.name,
        model=setup.benchmark.model,
        batch_size=setup.batch_size,
        depth=baseline.layers(setup.config.num_hidden_layers),
        order=baseline.order,
        dtype=baseline.dtype,
        task="training" if baseline.training else "inference",
        texts=len(setup.tokens),
        tokens=sum(setup.tokens.lengths),
        threads=setup.benchmark.threads,
        note=setup.workload.note,
    )
