"""`hashee study`: run the comparison of the paper, and print its tables and figures."""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from hashee.cli.shared import AsJson
from hashee.cost.threads import wait_passively
from hashee.errors import HasheeError, InputError

if TYPE_CHECKING:
    from hashee.study.clocks import Clocks
    from hashee.study.results import RunResult
    from hashee.study.run import Experiment
    from hashee.study.workers import Workers

OUTPUT = Path("results/study")
CLOCKS, FLOPS, DIFFICULTY = "clocks.json", "flops.json", "difficulty"
"""Files, and a folder, in the folder of results that are not of one run."""
KeepModels = Annotated[bool, typer.Option("--keep-models", help="Keep models too, which `study clock` times.")]
TIMED = ("first-layers", "fastbert", "pabee", "deebert", "hash-importance", "hash-depth", "hash-x-exit")
"""Methods that `clock` times unless told otherwise; the dense baselines are always among them."""
Results = Annotated[Path, typer.Option(help="Folder of result files.")]


def run(
    task: Annotated[str, typer.Option(help="sst2, mrpc, ...; or a file or folder of texts.")],
    method: Annotated[list[str], typer.Option(help="A method of `hashee study list`; several times for several.")],
    backbone: Annotated[str, typer.Option(help="Folder or Hub id of a model, or minilm.")] = "minilm",
    seeds: Annotated[int, typer.Option(help="Run with so many seeds.", min=1)] = 1,
    limit: Annotated[int | None, typer.Option(help="Train on so many examples only.", min=1)] = None,
    output: Annotated[Path, typer.Option(help="Folder for result files.")] = OUTPUT,
    epochs: Annotated[float | None, typer.Option(help="Passes of each of two stages; default: the task's.")] = None,
    max_length: Annotated[int | None, typer.Option(help="Tokens of a text at the most.", min=3)] = None,
    speedup: Annotated[float | None, typer.Option(help="For methods with tables: only this one.", min=1)] = None,
    threads: Annotated[int | None, typer.Option(help="Threads; default: the usable cores.", min=1)] = None,
    keep_models: KeepModels = False,
    as_json: AsJson = False,
) -> None:
    """Run methods on a task, each over its whole curve, and write one result file per run."""
    wait_passively()
    from hashee.study.grid import Block
    from hashee.study.workers import Workers

    given = {"epochs": epochs, "max_length": max_length, "speedup": speedup}
    settings = {name: value for name, value in given.items() if value is not None}
    limits = {} if limit is None else {"train": limit}
    block = Block([task], method, [backbone], seeds, limits, settings)
    _run(block.experiments(), RunOptions(output, Workers(threads=threads), keep_models, as_json))


def run_all(
    config: Annotated[Path, typer.Option(help="TOML file of runs, such as experiments/elue.toml.")],
    output: Annotated[Path | None, typer.Option(help="Folder for result files; default: the file's.")] = None,
    engine: Annotated[str, typer.Option(help="Where runs are: processes (here) or ray (on a cluster).")] = "processes",
    jobs: Annotated[int | None, typer.Option(help="Runs side by side; default: 1, or what fits on Ray.", min=1)] = None,
    threads: Annotated[int | None, typer.Option(help="Threads of each; default: all cores or 1.", min=1)] = None,
    address: Annotated[str | None, typer.Option(help="Ray cluster, such as auto; default: a local one.")] = None,
    gpus: Annotated[float, typer.Option(help="GPUs that Ray reserves for each.", min=0)] = 0.0,
    keep_models: KeepModels = False,
    as_json: AsJson = False,
) -> None:
    """Run what is missing or stale of a file of runs; start it again at any time, and it goes on."""
    wait_passively()
    from hashee.study.grid import read_grid
    from hashee.study.workers import Workers

    workers = Workers(engine, jobs, threads, address, gpus)
    grid = read_grid(config)
    _run(grid.experiments(), RunOptions(output or grid.output, workers, keep_models, as_json))


def clock(
    task: Annotated[list[str] | None, typer.Option(help="Whose test texts; default: snli and imdb.")] = None,
    method: Annotated[list[str] | None, typer.Option(help=f"Repeat for more; default: {', '.join(TIMED)}.")] = None,
    batch_size: Annotated[list[int] | None, typer.Option(help="Repeat for more; default: 1, 8, 32, 128.")] = None,
    speedup: Annotated[
        list[float] | None, typer.Option(help="Executed speed-up to time at; repeat for more; default: 3.", min=1)
    ] = None,
    rounds: Annotated[int, typer.Option(help="Timed rounds, in which methods take turns.", min=1)] = 5,
    texts: Annotated[int, typer.Option(help="Test texts that are timed.", min=1)] = 512,
    backbone: Annotated[str, typer.Option(help="Backbone of the runs whose models are timed.")] = "minilm",
    seed: Annotated[int, typer.Option(help="Seed of these runs.")] = 0,
    threads: Annotated[int | None, typer.Option(help="Threads; default: the usable cores.", min=1)] = None,
    results: Results = OUTPUT,
    output: Annotated[Path | None, typer.Option(help="File for the times; default: clocks.json in RESULTS.")] = None,
    as_json: AsJson = False,
) -> None:
    """Time methods side by side on the same texts, transformers among them, with the models that runs kept."""
    from hashee.bench.progress import shown_progress
    from hashee.cost.threads import torch_threads
    from hashee.hf.pretrained import quiet_transformers
    from hashee.study import clocking

    given: dict[str, Any] = {
        "tasks": task,
        "methods": method or TIMED,
        "batch_sizes": batch_size,
        "speedups": speedup,
    }
    given = {name: tuple(values) for name, values in given.items() if values}
    settings = clocking.ClockSettings(results, backbone=backbone, seed=seed, rounds=rounds, texts=texts, **given)
    path = output or results / CLOCKS
    clocks = None
    with quiet_transformers(), torch_threads(threads), shown_progress(Console(stderr=True)) as report:
        for clocks in clocking.clock(settings, report, lambda line: print(line, file=sys.stderr, flush=True)):
            # Hours of measuring should survive an interruption.
            clocks.write(path)
    assert clocks is not None  # there is a task and a batch size
    if as_json:
        print(json.dumps(asdict(clocks), allow_nan=False))
    else:
        for each in times_of(clocks):
            Console().print(each)
        Console().print(f"written to {path}", markup=False, highlight=False, soft_wrap=True)


def table(
    name: Annotated[str, typer.Argument(help="A table of `hashee study list`.")],
    results: Results = OUTPUT,
    backbone: Annotated[str | None, typer.Option(help="Only results with this backbone.")] = None,
    task: Annotated[str | None, typer.Option(help="Only results on this task.")] = None,
    clocks: Annotated[Path | None, typer.Option(help="File of times; default: clocks.json in RESULTS.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print a table of the paper with its figures beside ours."""
    from hashee.study.options import ReportOptions
    from hashee.study.tables import TABLES

    build = _named(TABLES, name, "table")
    options = ReportOptions(task, backbone, clocks or results / CLOCKS, results / FLOPS, results / DIFFICULTY)
    made = build(_results(results), options)
    if as_json:
        print(json.dumps(made.to_dict(), allow_nan=False))
    else:
        Console().print(made)


def figure(
    name: Annotated[str, typer.Argument(help="A figure of `hashee study list`.")],
    output: Annotated[Path, typer.Option(help="File to draw to: .png, .svg or .pdf.")],
    results: Results = OUTPUT,
    backbone: Annotated[str | None, typer.Option(help="Only results with this backbone.")] = None,
    task: Annotated[str | None, typer.Option(help="Only results on this task.")] = None,
) -> None:
    """Draw a figure of the paper from result files."""
    from hashee.study.figures import FIGURES, save
    from hashee.study.options import ReportOptions

    draw = _named(FIGURES, name, "figure")
    options = ReportOptions(task, backbone, results / CLOCKS, results / FLOPS, results / DIFFICULTY)
    save(draw(_results(results), options), output)
    Console().print(f"drawn to {output}", markup=False, highlight=False, soft_wrap=True)


def list_all(as_json: AsJson = False) -> None:
    """List methods, tables and figures."""
    from hashee.study.figures import FIGURES
    from hashee.study.methods import METHODS
    from hashee.study.tables import TABLES

    names = {"methods": sorted(METHODS), "tables": sorted(TABLES), "figures": sorted(FIGURES)}
    if as_json:
        print(json.dumps(names))
        return
    for title, each in names.items():
        print(f"{title}: {', '.join(each)}")


@dataclass(frozen=True)
class RunOptions:
    """How experiments are run, and how their results are shown."""

    output: Path
    workers: "Workers"
    keep_models: bool
    as_json: bool


def _run(experiments: "list[Experiment]", options: RunOptions) -> None:
    """Run experiments, say after each what came out, and fail if any did."""
    from hashee.study import grid
    from hashee.training.stopping import STOPS, as_stopped

    failures: list[str] = []
    told = count(1)

    def report(experiment: "Experiment", outcome: "RunResult | HasheeError") -> None:
        number = f"{next(told)} of {len(experiments)}"
        if isinstance(outcome, HasheeError):
            failures.append(f"{experiment.name}: {outcome}")
            print(f"{number} failed: {failures[-1]}", file=sys.stderr, flush=True)
        elif options.as_json:
            print(json.dumps(asdict(outcome), allow_nan=False), flush=True)
        else:
            Console().print(f"[bold]{number}[/]", summary(outcome, options.output), sep="\n")

    try:
        grid.run_all(experiments, options.output, report, options.workers, options.keep_models)
    except STOPS as error:
        stopped = as_stopped(error)
        print(f"{stopped.reason}; the same command goes on where it stopped", file=sys.stderr)
        raise typer.Exit(stopped.code) from None
    if failures:
        raise InputError(f"{len(failures)} of {len(experiments)} runs failed: {failures[0]}")


def summary(result: "RunResult", output: Path) -> Any:
    """Return a run's curve as a table."""
    title = f"{result.method} on {result.task}, {result.backbone}, seed {result.seed}"
    if result.not_applicable is not None:
        return f"{title}: not applicable: {result.not_applicable}"
    shown = Table(
        title=f"{title}: {result.passes:g} passes, {result.seconds:,.0f} s", caption=str(output / result.path)
    )
    for column in (result.knob, "dev", "test", "executed", "paper's count"):
        shown.add_column(column, justify="right")
    for point in result.curve:
        test = "" if point.test is None else f"{point.test:.4f}"
        cells = (f"{point.knob:g}", f"{point.dev:.4f}", test, f"{point.speedup:.2f}x", f"{point.paper_speedup:.2f}x")
        shown.add_row(*cells)
    return shown


def times_of(clocks: "Clocks") -> Iterator[Table]:
    """Yield a table of times for each kind of texts."""
    from hashee.study.clocking import TRANSFORMERS

    for texts in dict.fromkeys(row.texts for row in clocks.rows):
        points = clocks.points(texts)
        transformers = next(rows for rows in points if rows[0].method == TRANSFORMERS)
        rounds = len(transformers[0].seconds_per_text)
        shown = Table(
            title=f"{texts}: milliseconds per text, median of {rounds} rounds",
            caption=f"counted: in operations; faster: than transformers, by the clock; {clocks.machine}",
        )
        for column in ("method", "quality", "counted", "batch", "ms", "spread", "faster"):
            shown.add_column(column, justify="left" if column == "method" else "right")
        for rows in points:
            for row, padded in zip(rows, transformers, strict=True):
                about = (row.method, f"{row.quality:.4f}") if row is rows[0] else ("", "")
                times = (f"{1000 * row.median:.3f}", f"{row.spread:.0%}", f"{padded.median / row.median:.2f}x")
                shown.add_row(*about, f"{row.speedup:.2f}x", str(row.batch), *times, end_section=row is rows[-1])
        yield shown


def _results(folder: Path) -> "list[RunResult]":
    """Return all results below a folder; none where nothing has been run, which some tables do not need."""
    from hashee.study.results import read_results

    return list(read_results(folder)) if folder.is_dir() else []


def _named(known: dict[str, Any], name: str, what: str) -> Any:
    if name not in known:
        raise InputError(f"unknown {what} {name!r}; choose from {', '.join(sorted(known))}")
    return known[name]
