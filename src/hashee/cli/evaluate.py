"""`hashee evaluate` and `hashee tradeoff`: the fields of the settings are the options."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.text import Text
from typer.core import TyperCommand

from hashee.cli.options import LAST, given_options, options_from
from hashee.cost.threads import wait_passively
from hashee.data.task import TaskData
from hashee.errors import InputError
from hashee.evaluation.points import TradeoffPoint, passes_caption, read_points
from hashee.evaluation.settings import AUTO, OWN, PANELS, SPEEDUPS, TABLES, EvaluateSettings
from hashee.evaluation.whole_columns import WholeColumns
from hashee.training.settings import PANELS as FIT_PANELS
from hashee.training.settings import TIME, FitSettings
from hashee.training.stopping import STOPS, as_stopped

_DATA = ("task", "data", "dev", "test", "kind", "text_column", "pair_column", "label_column")
"""Settings of a fit that say which examples there are."""
_SHARED = [field.name for field in fields(FitSettings) if field.name not in OWN]
"""Settings of a fit that are the same for every point of a trade-off."""
_SEVERAL = ("--speedups", "--hash", "--depths")

_Folder = Annotated[str, typer.Argument(help="Folder of a fitted, converted, exported or dense model.")]
_AsJson = Annotated[bool, typer.Option("--json", help="Print JSON alone.", rich_help_panel="Report")]
_Output = Annotated[Path | None, typer.Option(help="Folder for evaluation.json and report.html.")]
_NoDense = Annotated[bool, typer.Option("--no-dense", help="Compare with no dense model.", rich_help_panel="Model")]
_Tradeoff = Annotated[
    Path | None, typer.Option(help="A tradeoff.json to draw into report.html.", rich_help_panel="Report")
]
_RETRIEVAL = "Retrieval"
_Retrieval = Annotated[
    Path | None, typer.Option(help="Folder of corpus, queries and qrels.", rich_help_panel=_RETRIEVAL)
]
_Sts = Annotated[Path | None, typer.Option(help="File of pairs with a similarity.", rich_help_panel=_RETRIEVAL)]
_Candidates = Annotated[
    str, typer.Option(help="Embedder whose top 100 are reranked.", rich_help_panel=_RETRIEVAL, show_default=False)
]
_Queries = Annotated[int | None, typer.Option(help="Judge so many only.", min=1, rich_help_panel=_RETRIEVAL)]
_Speedups = Annotated[list[float] | None, typer.Option(help=f"Default: {' '.join(f'{each:g}' for each in SPEEDUPS)}.")]
_Hashes = Annotated[list[str] | None, typer.Option(help=f"Kinds of exit tables; default: {' '.join(TABLES)}.")]
_Depths = Annotated[list[int] | None, typer.Option(help="Layers of static models; default: all below.")]
_PointsAsJson = Annotated[bool, typer.Option("--json", help="Print JSON alone.", rich_help_panel=LAST)]
_NoStatic = Annotated[bool, typer.Option("--no-static", help="Fit no shallower models without exits.")]


@options_from(FitSettings, FIT_PANELS, _DATA)
@options_from(EvaluateSettings, PANELS)
def evaluate(
    folder: _Folder,
    *,
    no_dense: _NoDense = False,
    retrieval: _Retrieval = None,
    sts: _Sts = None,
    candidates: _Candidates = "minilm",
    queries: _Queries = None,
    tradeoff: _Tradeoff = None,
    output: _Output = None,
    as_json: _AsJson = False,
    **options: Any,
) -> None:
    """Measure quality, cost and speed of a model on a split, with its exits and its worst examples."""
    if retrieval is not None or sts is not None:
        dense = None if no_dense or options["dense"] == AUTO else options["dense"]
        metrics = _without_training(folder, dense, retrieval, sts, candidates, queries, options["threads"])
        _print_metrics(metrics, as_json)
        return
    from hashee.evaluation.measure import evaluate as evaluate_model

    data = _load_data(folder, {name: options.pop(name) for name in _DATA})
    points = () if tradeoff is None else read_points(tradeoff)
    if no_dense:
        options["dense"] = None
    evaluation = evaluate_model(folder, data, options.pop("split"), **options)
    if output is not None:
        evaluation.save(output, points)
    if as_json:
        print(json.dumps(evaluation.to_dict(), allow_nan=False))
        return
    console = Console()
    console.print(evaluation)
    if output is not None:
        console.print(Text(f"saved to {output / 'report.html'} and evaluation.json"), soft_wrap=True)


def _without_training(
    folder: str,
    dense: str | None,
    retrieval: Path | None,
    sts: Path | None,
    candidates: str,
    queries: int | None,
    threads: int | None,
) -> dict[str, Any]:
    """Return the metrics of an embedder or reranker, and of a dense one beside it."""
    from hashee.cost.threads import torch_threads
    from hashee.evaluation.retrieval import evaluate_retrieval
    from hashee.evaluation.similarity import evaluate_sts
    from hashee.hf.pretrained import quiet_transformers

    if retrieval is not None and sts is not None:
        raise InputError("--retrieval and --sts are two evaluations; give one of them")
    with quiet_transformers(), torch_threads(threads):
        if retrieval is not None:
            return evaluate_retrieval(folder, retrieval, dense=dense, candidates=candidates, queries=queries)
        assert sts is not None
        return evaluate_sts(folder, sts, dense=dense)


def _print_metrics(metrics: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(metrics, allow_nan=False))
        return
    dense = metrics.get("dense")
    for name, value in metrics.items():
        if name != "dense":
            beside = "" if dense is None or name not in dense else f"   dense {dense[name]:.4f}"
            print(f"{name:<10} {value:,}" if isinstance(value, int) else f"{name:<10} {value:.4f}{beside}")


def _load_data(folder: str, given: dict[str, Any]) -> TaskData:
    """Read the examples that were named, or else those that the model was fitted to."""
    from hashee.data.run_record import read_run

    given = {name: value for name, value in given.items() if value is not None}
    if "task" in given:
        return FitSettings(output=Path(), **given).load_data()
    run = read_run(folder)
    if run is None:
        raise InputError(f"{folder} has no run.json that says what it was fitted to; name a task with --task")
    stored: dict[str, Any] = {name: run.settings.get(name) for name in (*_DATA, "limit")}
    if not isinstance(stored["task"], str):
        raise InputError(f"the model in {folder} was given its data in Python; name the task with --task")
    return FitSettings(output=Path(), **(stored | given)).load_data()


@options_from(FitSettings, FIT_PANELS, _SHARED)
def tradeoff(
    context: typer.Context,
    speedups: _Speedups = None,
    hash: _Hashes = None,
    depths: _Depths = None,
    no_static: _NoStatic = False,
    *,
    as_json: _PointsAsJson = False,
    **options: Any,
) -> None:
    """Fit models at several speed-ups, shallower ones and the dense one, and draw quality against cost."""
    if options["speedup_by"] != TIME:
        wait_passively()
    from hashee.evaluation.compare import FIGURE
    from hashee.evaluation.compare import tradeoff as fit_tradeoff

    grid: dict[str, Any] = {"speedups": speedups or SPEEDUPS, "hash": hash or TABLES}
    grid["depths"] = () if no_static else depths
    given = given_options(context, options)
    try:
        points = fit_tradeoff(**grid, **given)
    except STOPS as error:
        stopped = as_stopped(error)
        print(f"{stopped.reason}; the same command goes on where it stopped", file=sys.stderr)
        raise typer.Exit(stopped.code) from None
    if not _is_main():
        return
    if as_json:
        print(json.dumps([asdict(point) for point in points], allow_nan=False))
    else:
        console = Console()
        console.print(points_table(points))
        console.print(Text(f"drawn to {Path(given['output']) / FIGURE}"), soft_wrap=True)


def points_table(points: Sequence[TradeoffPoint]) -> RenderableType:
    """Return the points of a trade-off as a table."""
    from hashee.evaluation.compare import POINTS

    headers = ("", "executed", "test", "dev", "asked", "MMACs/text", "seconds")
    table = WholeColumns(headers, [_cells(point) for point in points], elsewhere=POINTS)
    captions = ("* no model as cheap is better on dev", passes_caption(points))
    return Group(table, *(Text(caption) for caption in captions if caption is not None))


def _cells(point: TradeoffPoint) -> tuple[str, ...]:
    asked = f"{point.asked:g}x" if point.asked else ""
    if point.skipped is not None:
        return point.name, "skipped", "", "", asked, "", ""
    return (
        f"{point.name}{' *' if point.on_front else ''}",
        f"{point.speedup:.2f}x",
        _with_deviation(point.test, point.test_std, point.seeds),
        _with_deviation(point.dev, point.dev_std, point.seeds),
        asked,
        f"{(point.macs or 0) / 1e6:,.1f}",
        f"{point.seconds:,.0f}",
    )


def _with_deviation(score: float | None, deviation: float, seeds: int) -> str:
    if score is None:
        return ""
    return f"{score:.4f} ± {deviation:.4f}" if seeds > 1 else f"{score:.4f}"


class SeveralValues(TyperCommand):
    """A command that takes `--speedups 2 3 5` as well as `--speedups 2 --speedups 3 --speedups 5`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Repeat the option before each of its values."""
        spread: list[str] = []
        several = None
        for argument in args:
            if argument.startswith("--"):
                several = argument if argument in _SEVERAL else None
            elif several is not None and spread[-1] != several:
                spread.append(several)
            spread.append(argument)
        return super().parse_args(ctx, spread)


tradeoff.command_class = SeveralValues  # type: ignore[attr-defined]


def _is_main() -> bool:
    from hashee.training.processes import current_processes  # its packages are an extra

    return current_processes().is_main
