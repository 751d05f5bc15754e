"""`hashee speed`: the benchmark on the command line."""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hashee.bench.progress import shown_progress
from hashee.bench.protocol import BATCH_SIZES, Benchmark, Row
from hashee.bench.report import as_table, write_json, write_plot
from hashee.cost.machine import usable_cores

QUICK_SECONDS = 280.0
"""No further round starts that would end later: all baselines in under 5 minutes on two cores."""
TRAINING_BATCH = 32


def speed(  # typer makes an option of each
    quick: Annotated[bool, typer.Option("--quick", help="SST-2 at batch 32, all baselines, under 5 minutes.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the rows as a JSON list.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a plot of throughput against batch size.")] = None,
    workload: Annotated[str, typer.Option(help="SST-2, SNLI or IMDb, read from HASHEE_DATA.")] = "SST-2",
    model: Annotated[str, typer.Option(help="bert-base (random weights) or minilm (real).")] = "bert-base",
    batch_size: Annotated[list[int] | None, typer.Option(help="Repeat for more; default: 1, 8, 32, 128.")] = None,
    baselines: Annotated[
        list[str] | None, typer.Option("--baselines", "--peers", help="Only this one; repeat for more.")
    ] = None,
    texts: Annotated[int | None, typer.Option(help="Texts per round; default: what the workload says.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Timed rounds; default: 5, or 3 if quick.")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads of every baseline; default: all cores.")] = None,
    training: Annotated[bool, typer.Option("--training", help="Time forward + backward at batch 32.")] = False,
    seed: Annotated[int, typer.Option(help="Draws the texts and the order of the rounds.")] = 0,
) -> None:
    """Clock hashee and baselines side by side on the same texts, each in its own process, in interleaved rounds."""
    benchmark = Benchmark(
        workload=workload,
        model=model,
        batch_sizes=(TRAINING_BATCH,) if training else BATCH_SIZES,
        threads=threads or usable_cores(),
        seed=seed,
        baselines=tuple(baselines or ()),
        training=training,
    )
    if quick:
        benchmark = replace(benchmark, batch_sizes=(32,), texts=64, rounds=3, budget_seconds=QUICK_SECONDS)
    if batch_size:
        benchmark = replace(benchmark, batch_sizes=tuple(batch_size))
    if rounds is not None:
        benchmark = replace(benchmark, rounds=rounds)
    run(replace(benchmark, texts=benchmark.texts if texts is None else texts), json_file, plot, Console())


def run(benchmark: Benchmark, json_file: Path | None, plot: Path | None, console: Console) -> list[Row]:
    """Run a benchmark, print each batch size as it is done, and write the reports."""
    rows: list[Row] = []
    with (
        shown_progress(console, benchmark.budget_seconds) as report,
        tempfile.TemporaryDirectory(prefix="hashee-speed-") as folder,
    ):
        # Imports of torch and transformers take seconds in which nothing would be shown.
        from transformers.utils import logging

        from hashee.bench.run import run_benchmark

        logging.disable_progress_bar()  # ours says more
        for measured in run_benchmark(benchmark, Path(folder), report):
            console.print(as_table(measured))
            rows += measured
            # Hours of measuring should survive an interruption.
            if json_file is not None:
                write_json(rows, json_file)
    if plot is not None:
        write_plot(rows, plot)
    return rows
