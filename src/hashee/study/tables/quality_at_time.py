"""All methods at the same measured time: quality interpolated between the operating points that were timed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hashee.study.clocks import ClockRow, Clocks, read_clocks
from hashee.study.curves import notes_on_data
from hashee.study.options import ReportOptions
from hashee.study.paper import TASKS
from hashee.study.results import OperatingPoint, RunResult
from hashee.study.tables.quality_at_cost import quality_at
from hashee.study.tables.table import Content, Table, without_repeats

BASELINE = "dense"
"""Whose time the others' are relative to: the whole backbone on the packed engine, which all methods run on."""
TIMES = (1.5, 2.0, 3.0, 4.0, 6.0)
"""Speed-ups over the dense model, by the clock."""


@dataclass(frozen=True)
class _Timed:
    """A run whose speed-ups are measured instead of counted, at the operating points that were timed."""

    result: RunResult
    batch: int


def quality_at_time(results: list[RunResult], options: ReportOptions) -> Table:
    """Compare methods at 1.5 to 6 times less time than the dense model takes, for each batch size."""
    clocks = read_clocks(options.clocks) if options.clocks.exists() else Clocks(())
    chosen = [result for result in results if _is_timed(result, clocks) and options.backbone in (None, result.backbone)]
    rows: list[tuple[Content, ...]] = []
    shown: list[RunResult] = []
    stale: list[str] = []
    for task, texts in TASKS.items():
        if options.task not in (None, task):
            continue
        own = [result for result in chosen if result.task == task]
        found = list(_measured(own, clocks, texts, stale))
        shown += [timed.result for timed in found]
        for timed in sorted(found, key=lambda timed: timed.batch):
            where = f"{texts}, {timed.result.backbone}, batch {timed.batch}"
            cells = (quality_at([timed.result], speedup) for speedup in TIMES)
            rows.append((timed.result.label, where, *cells))
    notes = [
        "columns: times less time per text than the dense model takes on the same engine in batches of the same size, "
        "medians of rounds in turns; quality is interpolated between the operating points that were timed and that dev "
        "would choose, linearly in the logarithm of the speed-up",
        "-: no timed point is so fast; where the slowest is faster than asked, that point is shown",
        f"ours: {clocks.machine}"
        if clocks.rows
        else f"there is no file {options.clocks}; measure with `hashee study clock`, several --speedup for a curve",
        *stale,
        *notes_on_data(shown),
    ]
    columns = ("method", "texts, backbone", *(f"{speedup:g}x" for speedup in TIMES))
    return Table("Quality in percent at the same measured time", columns, tuple(rows), without_repeats(notes))


def _is_timed(result: RunResult, clocks: Clocks) -> bool:
    """Whether a result is of the backbone and the seed that were timed."""
    known = clocks.protocol.get("backbone", result.backbone), clocks.protocol.get("seed", result.seed)
    return (result.backbone, result.seed) == known


def _measured(results: Sequence[RunResult], clocks: Clocks, texts: str, stale: list[str]) -> Iterator[_Timed]:
    """Yield each run with what its operating points measured, once for each batch size. stale: told of those gone."""
    points = clocks.points(texts)
    dense = {row.batch: row.median for rows in points for row in rows if row.method == BASELINE}
    curves: dict[tuple[int, int], list[OperatingPoint]] = {}
    for rows in points:
        matches = [(number, point) for number, result in enumerate(results) for point in _matching(result, rows[0])]
        if not matches and rows[0].method in {result.method for result in results}:
            stale.append(f"{rows[0].method} on {texts}: its results are newer than its times; measure again")
        for number, point in matches[:1]:
            for row in rows:
                if row.batch in dense:
                    measured = replace(point, speedup=dense[row.batch] / row.median)
                    curves.setdefault((number, row.batch), []).append(measured)
    for (number, batch), curve in curves.items():
        yield _Timed(replace(results[number], curve=tuple(curve)), batch)


def _matching(result: RunResult, row: ClockRow) -> list[OperatingPoint]:
    """Return the point of a run that a row has timed; none if the run has been made anew since."""
    return [
        point
        for point in result.curve
        if (result.method, point.knob) == (row.method, row.knob)
        and row.candidate in ("", point.candidate)
        and row.quality == (point.dev if point.test is None else point.test)
    ]
