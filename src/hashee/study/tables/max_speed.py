"""How many texts a second each method gets through at its best batch size."""

from functools import partial

from hashee.study.clocks import LONG, SHORT, ClockRow, Clocks, read_clocks
from hashee.study.options import ReportOptions
from hashee.study.paper import FASTEST, MAX_SPEED
from hashee.study.results import RunResult
from hashee.study.tables.table import NOT_MEASURED, Cell, Content, Table

BASELINE = "dense"
"""Whose throughput the others' are relative to."""


def max_speed(results: list[RunResult], options: ReportOptions) -> Table:
    """Set measured throughput beside the paper's; texts a second and relative to the dense model."""
    clocks = read_clocks(options.clocks) if options.clocks.exists() else Clocks(())
    known = list(dict.fromkeys(row.method for row in FASTEST))
    others = [method for method in dict.fromkeys(row.method for row in clocks.rows) if method not in known]
    rows = [
        (method, *(make(method, texts) for texts in (SHORT, LONG) for make in (partial(_ours, clocks), _papers)))
        for method in [*known, *others]
    ]
    notes = [
        "texts a second at the batch size with the most, median of rounds (relative to the dense model)",
        f"paper: {MAX_SPEED.label}, one RTX 3090",
    ]
    if clocks.asked_speedup is not None:
        notes.append(f"ours: each method at its operating point nearest to {clocks.asked_speedup:g}x fewer operations")
    if clocks.hardware:
        notes.append(f"ours: {clocks.machine}")
    else:
        notes.append(f"ours: there is no file {options.clocks}; measure with `hashee study clock`")
    columns = (f"{texts}, {source}" for texts in (SHORT, LONG) for source in ("ours", "paper"))
    return Table("Highest throughput", ("method", *columns), tuple(rows), tuple(notes))


def _ours(clocks: Clocks, method: str, texts: str) -> Content:
    rows = clocks.of(texts)
    if method not in rows:
        return NOT_MEASURED
    best = fastest(rows[method])
    ratio = fastest(rows[BASELINE]).median / best.median if BASELINE in rows else None
    values = {
        "source": "ours",
        "texts_per_second": 1 / best.median,
        "batch": best.batch,
        "ratio": ratio,
        "speedup": best.speedup,
        "quality": best.quality,
    }
    relative = "" if ratio is None else f" ({ratio:.1f}x)"
    return Cell(f"{1 / best.median:,.0f}{relative}", values)


def fastest(rows: list[ClockRow]) -> ClockRow:
    """Return the batch size at which a text takes least."""
    return min(rows, key=lambda row: row.median)


def _papers(method: str, texts: str) -> Content:
    found = {row.method: row.texts_per_second for row in FASTEST if row.texts == texts}
    if method not in found:
        return None
    ratio = found[method] / found[BASELINE]
    values = {"source": "paper", "texts_per_second": found[method], "ratio": ratio}
    return Cell(f"{found[method]:,.0f} ({ratio:.1f}x)", values)
