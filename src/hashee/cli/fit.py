"""`hashee fit`: every field of `FitSettings` is an option."""

import inspect
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer
from rich.console import Console
from rich.table import Table

from hashee.cli.options import option
from hashee.cost.threads import wait_passively
from hashee.data.run_record import Metrics, RunRecord
from hashee.training.settings import PANELS, TIME, FitSettings
from hashee.training.stopping import how_it_stopped, sigterm_raises


def fit(context: typer.Context, **options: Any) -> None:
    """Fit a model with exits to labelled texts: dense model, exit table, hashed model, the best of them on dev."""
    if options["speedup_by"] != TIME:
        wait_passively()
    from hashee.training.entry import fit as fit_model
    from hashee.training.entry import stored_settings

    given = {name: value for name, value in options.items() if _was_given(context, name)}
    try:
        with sigterm_raises():
            result = fit_model(**given)
    except KeyboardInterrupt as error:
        word, code = how_it_stopped(error)
        output = given.get("output")
        begun = output is not None and stored_settings(Path(output)) is not None
        resume = f"; go on with: hashee fit --output {shlex.quote(str(output))} --resume" if begun else ""
        print(f"{word}{resume}", file=sys.stderr)
        raise typer.Exit(code) from None
    if _is_main():
        Console().print(summary(result.run, result.folder), highlight=False)


def summary(run: RunRecord, folder: Path) -> Table:
    """Return the outcome as a table."""
    table = Table(title=f"{run.task.name}: saved to {folder}", title_justify="left")
    for column in ("", "dev", "test", "MACs per text"):
        table.add_column(column, justify="left" if column == "" else "right")
    macs = run.macs
    if run.dense is not None:
        dense = macs.dense_per_text * run.dense.layers / run.backbone.layers
        table.add_row("dense", *_cells(run.dense.metrics), f"{dense / 1e6:,.0f} M")
    less = f"{macs.executed_per_text / 1e6:,.0f} M ({macs.speedup:.1f}x less than the backbone)"
    table.add_row(f"by {run.table.method}", *_cells(run.metrics), less)
    if run.summary is not None:
        means = [
            "" if values is None else f"{values['score']['mean']:.4f} ± {values['score']['std']:.4f}"
            for values in (run.summary["dev"], run.summary["test"])
        ]
        table.add_row(f"mean of {len(run.seeds or ())} seeds", *means, "")
    return table


def _cells(metrics: Metrics) -> list[str]:
    measured = [metrics[split] for split in ("dev", "test")]
    return ["" if each is None else f"{each['score']:.4f}" for each in measured]


def _is_main() -> bool:
    from accelerate import PartialState  # type: ignore[import-untyped]  # an extra

    return bool(PartialState().is_main_process)


def _was_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _parameters() -> list[inspect.Parameter]:
    """Return the command's parameters as typer reads them, made from the fields of the settings."""
    parameters = [inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)]
    for name, hint in get_type_hints(FitSettings, include_extras=True).items():
        kind, text = get_args(hint)
        # Both are asked for by `fit`: with --resume, the task is read from the folder.
        kind = {"task": str | None, "output": Path | None}.get(name, kind)
        default = getattr(FitSettings, name, None)
        parameters.append(
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=default,
                annotation=Annotated[kind, option(name, kind, text, default, PANELS)],
            )
        )
    return parameters


fit.__signature__ = inspect.Signature(_parameters())  # type: ignore[attr-defined]
fit.__annotations__ = {parameter.name: parameter.annotation for parameter in _parameters()}
