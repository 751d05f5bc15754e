"""Rows for readers: a table on the console, a JSON list, a plot of throughput against batch size."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hashee.errors import HasheeError
from hashee.files import replaced_atomically
from hashee.packages import require
from hashee.speed.protocol import Row


def as_table(rows: Sequence[Row]) -> RenderableType:
    """Return the rows of one batch size as a table, fastest last, and below it those that were skipped."""
    measured = sorted((row for row in rows if row.texts_per_second), key=lambda row: row.texts_per_second or 0.0)
    skipped = [Text(f"skipped {row.name}: {row.skipped}") for row in rows if row.skipped]
    if not measured:
        return Group(*skipped)
    first = measured[0]
    table = Table(title=title(first), title_justify="left")
    table.add_column("peer")
    for column in ("layers", "type", "texts/s", "ratio", "of rounds", "GFLOP/s", "of peak", "spread", "MB", "differs"):
        table.add_column(column, justify="right")
    for row in measured:
        table.add_row(*_cells(row))
    peak = Text(f"sgemm peak {first.sgemm_gflops:.1f} GFLOP/s; ratio: to transformers, full depth, length-sorted")
    notes = [Text(f"note: {first.note}")] if first.note else []
    return Group(table, peak, *notes, *skipped)


def title(row: Row) -> str:
    """Say what the rows of one batch size have in common."""
    return (
        f"{row.model}, {row.task}, {row.workload}, batch {row.batch_size}: {row.texts:,} texts, {row.tokens:,} tokens, "
        f"{row.threads} threads, {row.rounds} rounds"
    )


def _cells(row: Row) -> tuple[str, ...]:
    def shown(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    of_rounds = "" if row.ratio_min is None else f"{row.ratio_min:.2f}-{row.ratio_max:.2f}"
    return (
        row.name,
        str(row.depth),
        row.dtype,
        shown(row.texts_per_second, ",.1f"),
        shown(row.ratio, ".2f"),
        of_rounds,
        shown(row.executed_gflops, ".1f"),
        shown(row.utilisation, ".0%"),
        shown(row.spread, ".0%"),
        shown(row.peak_memory_mb, ",.0f"),
        shown(row.max_difference, ".0e"),
    )


def write_json(rows: Sequence[Row], path: Path) -> None:
    """Write the rows as a JSON list of objects."""
    with replaced_atomically(path) as temporary:
        temporary.write_text(json.dumps([row.to_dict() for row in rows], indent=1) + "\n", encoding="utf-8")


def read_json(path: Path) -> list[Row]:
    """Read what `write_json` wrote."""
    rows = json.loads(path.read_text(encoding="utf-8"))
    return [Row(**(row | {"seconds": tuple(row["seconds"])})) for row in rows]


def write_plot(rows: Sequence[Row], path: Path) -> None:
    """Draw texts per second against batch size, one line for each peer; the bars span the rounds."""
    measured = [row for row in rows if row.texts_per_second]
    if not measured:
        raise HasheeError(f"there is nothing to plot in {path}: no peer was measured")
    figure = require("matplotlib.figure", "speed", "--plot").Figure(figsize=(10, 6), layout="constrained")
    axes: Any = figure.subplots()
    for number, name in enumerate(dict.fromkeys(row.name for row in measured)):
        points = sorted((row for row in measured if row.name == name), key=lambda row: row.batch_size)
        rates = [row.texts / (row.median_seconds or 1.0) for row in points]
        below = [rate - row.texts / (row.max_seconds or 1.0) for rate, row in zip(rates, points, strict=True)]
        above = [row.texts / (row.min_seconds or 1.0) - rate for rate, row in zip(rates, points, strict=True)]
        axes.errorbar(
            [row.batch_size for row in points],
            rates,
            yerr=[below, above],
            label=f"{name} ({points[0].depth} layers)",
            color=f"C{number % 10}",
            linestyle="-" if number < 10 else "--",
            linewidth=3 if name.split()[0] == "hashee" else 1.5,
            marker="o",
            capsize=3,
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    sizes = sorted({row.batch_size for row in measured})
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.set_xlabel("batch size")
    axes.set_ylabel("texts per second")
    machine = measured[0].machine or {}
    axes.set_title(f"{measured[0].model}, {measured[0].workload}, {measured[0].threads} threads, {machine.get('cpu')}")
    axes.grid(True, which="both", alpha=0.3)
    figure.legend(loc="outside right upper", fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
