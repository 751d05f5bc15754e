"""`hashee fit`: every field of `FitSettings` is an option."""

import shlex
import sys
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from hashee.cli.options import given_options, options_from
from hashee.cost.threads import wait_passively
from hashee.data.run_record import Metrics, RunRecord
from hashee.training.settings import PANELS, TIME, FitSettings
from hashee.training.stopping import STOPS, as_stopped


@options_from(FitSettings, PANELS)
def fit(context: typer.Context, **options: Any) -> None:
    """Fit a model with exits to labelled texts: dense model, exit table, hashed model, the best of them on dev."""
    if options["speedup_by"] != TIME:
        wait_passively()
    from hashee.training.entry import fit as fit_model
    from hashee.training.entry import stored_settings

    given = given_options(context, options)
    try:
        result = fit_model(**given)
    except STOPS as error:
        stopped = as_stopped(error)
        output = given.get("output")
        begun = output is not None and stored_settings(Path(output)) is not None
        resume = f"; go on with: hashee fit --output {shlex.quote(str(output))} --resume" if begun else ""
        print(f"{stopped.reason}{resume}", file=sys.stderr)
        raise typer.Exit(stopped.code) from None
    if _is_main():
        Console().print(summary(result.run, result.folder), highlight=False)


def summary(run: RunRecord, folder: Path) -> Table:
    """Return scores and cost of a run as a table."""
    table = Table(title=f"{run.task.name}: saved to {folder}", title_justify="left")
    table.caption, table.caption_justify = caption(run), "left"
    for column in ("", "passes", "dev", "test", "MACs per text"):
        table.add_column(column, justify="left" if column == "" else "right")
    macs = run.macs
    dense = {"dense": run.dense, "dense, as many passes": run.dense_equal if run.dense_equal != run.dense else None}
    for name, record in dense.items():
        if record is not None:
            cost = macs.dense_per_text * record.layers / run.backbone.layers
            table.add_row(name, _passes(record.passes), *_cells(record.metrics), f"{cost / 1e6:,.0f} M")
    less = f"{macs.executed_per_text / 1e6:,.0f} M ({macs.speedup:.1f}x less than the backbone)"
    table.add_row(f"by {run.table.method}", _passes(run.passes), *_cells(run.metrics), less)
    if run.summary is not None:
        means = [
            "" if values is None else f"{values['score']['mean']:.4f} ± {values['score']['std']:.4f}"
            for values in (run.summary["dev"], run.summary["test"])
        ]
        table.add_row(f"mean of {len(run.seeds or ())} seeds", "", *means, "")
    return table


def caption(run: RunRecord) -> str | None:
    """Say what of the table does not compare; None where all rows had equal passes over the training examples."""
    dense = run.dense
    if dense is None or (run.passes is not None and dense.passes == run.passes):
        return None
    if dense.passes is None or run.passes is None:
        return "how many passes over the training examples the dense model had is not known"
    part = "half the passes" if 2 * dense.passes == run.passes else f"{dense.passes:g} of {run.passes:g} passes"
    how = "compare with the row below it" if run.dense_equal is not None else "--compare-dense fits one for as many"
    return f"the dense model that the other started from had {part} over the training examples; {how}"


def _passes(passes: float | None) -> str:
    return "unknown" if passes is None else f"{passes:g}"


def _cells(metrics: Metrics) -> list[str]:
    """Return the scores on dev and test, empty where there is none."""
    splits = [metrics[split] for split in ("dev", "test")]
    return ["" if values is None else f"{values['score']:.4f}" for values in splits]


def _is_main() -> bool:
    from accelerate import PartialState  # type: ignore[import-untyped]  # an extra

    return bool(PartialState().is_main_process)
