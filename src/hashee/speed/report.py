"""Rows for readers: a table on the console, a JSON list, a plot of throughput against batch size."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from hashee.errors import HasheeError
from hashee.files import replaced_atomically
from hashee.packages import require
from hashee.speed.protocol import Row


@dataclass(frozen=True)
class Column:
    """A column of the table, and how it shows a row."""

    header: str
    shown: Callable[[Row], str]


def _number(name: str, form: str) -> Callable[[Row], str]:
    def shown(row: Row) -> str:
        value = getattr(row, name)
        return "" if value is None else format(value, form)

    return shown


def _of_rounds(row: Row) -> str:
    return "" if row.ratio_min is None else f"{row.ratio_min:.2f}-{row.ratio_max:.2f}"


NAME = Column("peer", lambda row: row.name)
COLUMNS = (
    Column("texts/s", _number("texts_per_second", ",.1f")),
    Column("ratio", _number("ratio", ".2f")),
    Column("of rounds", _of_rounds),
    Column("layers", lambda row: str(row.depth)),
    Column("of peak", _number("utilisation", ".0%")),
    Column("MB", _number("peak_memory_mb", ",.0f")),
    Column("type", lambda row: row.dtype),
    Column("GFLOP/s", _number("executed_gflops", ".1f")),
    Column("spread", _number("spread", ".0%")),
    Column("differs", _number("max_difference", ".0e")),
)
"""What matters most comes first: a narrow terminal has no room for the others."""


def as_table(rows: Sequence[Row]) -> RenderableType:
    """Return the rows of one batch size as a table, fastest last, and below it those that were skipped."""
    measured = sorted((row for row in rows if row.texts_per_second), key=lambda row: row.texts_per_second or 0.0)
    skipped = [Text(f"skipped {row.name}: {row.skipped}") for row in rows if row.skipped]
    if not measured:
        return Group(*skipped)
    first = measured[0]
    reference = "transformers training" if first.task == "training" else "transformers, full depth, length-sorted"
    peak = Text(f"sgemm peak {first.sgemm_gflops:.1f} GFLOP/s; ratio: to {reference}")
    notes = [Text(f"note: {first.note}")] if first.note else []
    return Group(Text(title(first), style="bold"), WholeColumns(measured), peak, *notes, *skipped)


@dataclass(frozen=True)
class WholeColumns:
    """A table of as many columns as there is room for, whose names and numbers are never cut."""

    rows: Sequence[Row]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown = [NAME]
        for column in COLUMNS:
            if self._width([*shown, column]) <= options.max_width:
                shown.append(column)
        table = Table()
        for column in shown:
            table.add_column(column.header, justify="left" if column is NAME else "right", no_wrap=column is not NAME)
        for row in self.rows:
            table.add_row(*(Text(column.shown(row)) for column in shown))
        yield table
        missing = [column.header for column in COLUMNS if column not in shown]
        if missing:
            yield Text(f"no room for: {', '.join(missing)}; see --json, or widen the terminal")

    def _width(self, columns: Sequence[Column]) -> int:
        """Return how many characters a table of these columns takes."""
        widths = [
            max(cell_len(column.header), *(cell_len(column.shown(row)) for row in self.rows)) for column in columns
        ]
        # A space on both sides of every cell, and lines between them and at the edges.
        return sum(widths) + 3 * len(columns) + 1


def title(row: Row) -> str:
    """Say what the rows of one batch size have in common."""
    return (
        f"{row.model}, {row.task}, {row.workload}, batch {row.batch_size}: {row.texts:,} texts, {row.tokens:,} tokens, "
        f"{row.threads} threads, {row.rounds} rounds"
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
