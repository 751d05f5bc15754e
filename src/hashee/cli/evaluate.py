"""`hashee evaluate` and `hashee tradeoff`: the fields of the settings are the options."""

import inspect
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer
from rich.console import Console, Group, RenderableType
from rich.text import Text
from typer.core import TyperCommand

from hashee.cli.options import LAST, Panels, option
from hashee.cost.threads import wait_passively
from hashee.data.task import TaskData
from hashee.errors import InputError
from hashee.evaluation.points import TradeoffPoint, read_points
from hashee.evaluation.settings import OWN, PANELS, SPEEDUPS, TABLES, EvaluateSettings
from hashee.evaluation.whole_columns import WholeColumns
from hashee.training.settings import PANELS as FIT_PANELS
from hashee.training.settings import TIME, FitSettings
from hashee.training.stopping import how_it_stopped, sigterm_raises

_DATA = ("task", "data", "dev", "test", "kind", "text_column", "pair_column", "label_column")
"""Settings of a fit that say which examples there are."""
_SEVERAL = ("--speedups", "--hash", "--depths")

_Folder = Annotated[str, typer.Argument(help="Folder of a fitted, converted, exported or dense model.")]
_AsJson = Annotated[bool, typer.Option("--json", help="Print JSON alone.", rich_help_panel="Report")]
_Output = Annotated[Path | None, typer.Option(help="Folder for evaluation.json and report.html.")]
_NoDense = Annotated[bool, typer.Option("--no-dense", help="Compare with no dense model.", rich_help_panel="Model")]
_Tradeoff = Annotated[
    Path | None, typer.Option(help="A tradeoff.json to draw into report.html.", rich_help_panel="Report")
]
_Speedups = Annotated[list[float] | None, typer.Option(help=f"Default: {' '.join(f'{each:g}' for each in SPEEDUPS)}.")]
_Hashes = Annotated[list[str] | None, typer.Option(help=f"Kinds of exit tables; default: {' '.join(TABLES)}.")]
_Depths = Annotated[list[int] | None, typer.Option(help="Layers of static models; default: all below.")]
_PointsAsJson = Annotated[bool, typer.Option("--json", help="Print JSON alone.", rich_help_panel=LAST)]
_NoStatic = Annotated[bool, typer.Option("--no-static", help="Fit no shallower models without exits.")]


def evaluate(folder: str, as_json: bool, output: Path | None, **options: Any) -> None:
    """Measure quality, cost and speed of a model on a split, with its exits and its worst examples."""
    from hashee.evaluation.measure import evaluate as evaluate_model

    data = _load_data(folder, {name: options.pop(name) for name in _DATA})
    tradeoff_file = options.pop("tradeoff")
    points = () if tradeoff_file is None else read_points(tradeoff_file)
    if options.pop("no_dense"):
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


def tradeoff(context: typer.Context, as_json: bool, **options: Any) -> None:
    """Fit models at several speed-ups, shallower ones and the dense one, and draw quality against cost."""
    if options["speedup_by"] != TIME:
        wait_passively()
    from hashee.evaluation.compare import FIGURE
    from hashee.evaluation.compare import tradeoff as fit_tradeoff

    own: dict[str, Any] = {"speedups": options.pop("speedups") or SPEEDUPS, "hash": options.pop("hash") or TABLES}
    depths = options.pop("depths")
    own["depths"] = () if options.pop("no_static") else depths
    given = {name: value for name, value in options.items() if _was_given(context, name)}
    try:
        with sigterm_raises():
            points = fit_tradeoff(**own, **given)
    except KeyboardInterrupt as error:
        word, code = how_it_stopped(error)
        print(f"{word}; the same command goes on where it stopped", file=sys.stderr)
        raise typer.Exit(code) from None
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
    return Group(table, Text("* no model as cheap is better on dev"))


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


def _was_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _options(settings: Any, names: Iterable[str], panels: Panels) -> list[inspect.Parameter]:
    """Return fields of settings as typer reads options."""
    hints = get_type_hints(settings, include_extras=True)
    defaults = {field.name: None if field.default is MISSING else field.default for field in fields(settings)}
    made = []
    for name in names:
        kind, text = get_args(hints[name])
        # What a model was fitted to is known from its folder, and a missing output is for the fit to notice.
        kind = {"task": str | None, "output": Path | None}.get(name, kind)
        made.append(_option(name, Annotated[kind, option(name, kind, text, defaults[name], panels)], defaults[name]))
    return made


def _option(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _set_parameters(command: Any, parameters: list[inspect.Parameter]) -> None:
    command.__signature__ = inspect.Signature(parameters)
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}


def _positional(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=annotation)


_set_parameters(
    evaluate,
    [
        _positional("folder", _Folder),
        *_options(FitSettings, _DATA, FIT_PANELS),
        *_options(EvaluateSettings, [field.name for field in fields(EvaluateSettings)], PANELS),
        _option("no_dense", _NoDense, default=False),
        _option("tradeoff", _Tradeoff, default=None),
        _option("output", _Output, default=None),
        _option("as_json", _AsJson, default=False),
    ],
)
_set_parameters(
    tradeoff,
    [
        _positional("context", typer.Context),
        _option("speedups", _Speedups, default=None),
        _option("hash", _Hashes, default=None),
        _option("depths", _Depths, default=None),
        _option("no_static", _NoStatic, default=False),
        *_options(FitSettings, [field.name for field in fields(FitSettings) if field.name not in OWN], FIT_PANELS),
        _option("as_json", _PointsAsJson, default=False),
    ],
)
