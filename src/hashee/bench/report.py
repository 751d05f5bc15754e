"""Rows for readers: a table on the console, a JSON list, a plot of throughput against batch size."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from hashee.bench.protocol import Row
from hashee.errors import HasheeError
from hashee.evaluation.whole_columns import WholeColumns
from hashee.files import replaced_atomically
from hashee.packages import require


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
    return "" if row.ratio_min is None else f"{row.ratio_min:.3g}-{row.ratio_max:.3g}"


NAME = Column("method", lambda row: row.name)
AGREES = Column("agrees", _number("agreement", ".4f"))
COLUMNS = (
    Column("texts/s", _number("texts_per_second", ",.1f")),
    Column("ratio", _number("ratio", ".2f")),
    AGREES,
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
    """Return the rows of one batch size as a table, by precision and speed, and below it those that were skipped."""
    skipped = [Text(f"skipped {row.name}: {row.skipped}") for row in rows if row.skipped]
    # float32 first, which the others are compared with; the fastest of each precision last.
    measured = sorted(
        (row for row in rows if row.texts_per_second),
        key=lambda row: (row.dtype != "float32", row.dtype, row.texts_per_second),
    )
    if not measured:
        return Group(*skipped)
    columns = [column for column in (NAME, *COLUMNS) if column is not AGREES or any(map(column.shown, measured))]
    cells = [[column.shown(row) for column in columns] for row in measured]
    groups = [number for number in range(1, len(measured)) if measured[number].dtype != measured[number - 1].dtype]
    table = WholeColumns([column.header for column in columns], cells, elsewhere="--json", groups=groups)
    return Group(Text(title(measured[0]), style="bold"), table, *_footnotes(measured), *skipped)


def _footnotes(rows: Sequence[Row]) -> list[Text]:
    """Say what the columns mean."""
    first = rows[0]
    reference = "transformers training" if first.task == "training" else "transformers, full depth, length-sorted"
    notes = [Text(f"sgemm peak {first.sgemm_gflops:.1f} GFLOP/s; ratio: to {reference}")]
    types = list(dict.fromkeys(row.dtype for row in rows))
    if len(types) > 1:
        notes.append(Text(f"groups by precision: {', '.join(types)}"))
    if any(row.agreement is not None for row in rows):
        notes.append(Text("agrees: mean cosine of real MiniLM's outputs with the same in float32; 1 is the same"))
    if first.note:
        notes.append(Text(f"note: {first.note}"))
    return notes


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
    """Draw texts per second of each method, against batch size if there are several; the error bars span the rounds."""
    measured = [row for row in rows if row.texts_per_second]
    if not measured:
        raise HasheeError(f"there is nothing to plot in {path}: no baseline was measured")
    figure = speed_figure(measured)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def speed_figure(measured: Sequence[Row]) -> Any:
    """Return the figure as an object of matplotlib."""
    figure = require("matplotlib.figure", "speed", "--plot").Figure(figsize=(10, 6), layout="constrained")
    axes: Any = figure.subplots()
    if len({row.batch_size for row in measured}) == 1:
        _draw_bars(axes, measured)
    else:
        _draw_lines(figure, axes, measured)
    machine = measured[0].machine or {}
    axes.set_title(f"{measured[0].model}, {measured[0].workload}, {measured[0].threads} threads, {machine.get('cpu')}")
    return figure


def _rates(rows: Sequence[Row]) -> tuple[list[float], tuple[list[float], list[float]]]:
    """Return texts per second, and how far the slowest and the fastest round are from them."""
    rates = [row.texts / (row.median_seconds or 1.0) for row in rows]
    below = [rate - row.texts / (row.max_seconds or 1.0) for rate, row in zip(rates, rows, strict=True)]
    above = [row.texts / (row.min_seconds or 1.0) - rate for rate, row in zip(rates, rows, strict=True)]
    return rates, (below, above)


def _is_own(row: Row) -> bool:
    return row.name.split()[0] == "hashee"


def _draw_bars(axes: Any, rows: Sequence[Row]) -> None:
    """Draw a bar for each baseline at one batch size, where lines would be points on top of each other."""
    rows = sorted(rows, key=lambda row: row.texts_per_second or 0.0)
    rates, spans = _rates(rows)
    names = [f"{row.name} ({row.depth} layers)" for row in rows]
    axes.barh(names, rates, xerr=spans, color=["C0" if _is_own(row) else "C7" for row in rows], capsize=3)
    axes.set_xlabel(f"texts per second at batch size {rows[0].batch_size}")
    axes.grid(True, axis="x", alpha=0.3)


def _draw_lines(figure: Any, axes: Any, rows: Sequence[Row]) -> None:
    """Draw texts per second against batch size."""
    for number, name in enumerate(dict.fromkeys(row.name for row in rows)):
        points = sorted((row for row in rows if row.name == name), key=lambda row: row.batch_size)
        rates, spans = _rates(points)
        axes.errorbar(
            [row.batch_size for row in points],
            rates,
            yerr=spans,
            label=f"{name} ({points[0].depth} layers)",
            color=f"C{number % 10}",
            linestyle="-" if number < 10 else "--",
            linewidth=3 if _is_own(points[0]) else 1.5,
            marker="o",
            capsize=3,
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    sizes = sorted({row.batch_size for row in rows})
    axes.set_xticks(sizes, [str(size) for size in sizes])
    low, high = axes.get_ylim()
    ticker: Any = require("matplotlib.ticker", "speed", "--plot")
    # Numbers as people write them, not powers of ten; as many as have room.
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=range(1, 10) if high / low < 8 else (1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.yaxis.set_minor_formatter(ticker.NullFormatter())
    axes.set_xlabel("batch size")
    axes.set_ylabel("texts per second")
    axes.grid(True, which="both", alpha=0.3)
    figure.legend(loc="outside right upper", fontsize="small")
