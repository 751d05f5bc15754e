"""Put what `hashee study` found into the README and docs/results.md, between their markers, so that all agree.

hashee study clock --task sst2 --backbone gte-small --batch-size 32 --speedup 2 --speedup 3 --speedup 4 --speedup 6 \
    --method first-layers ... --output results/study/clocks-sst2.json
python benchmarks/study_pages.py
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from pages import write_part

from hashee.study.clocks import Clocks, read_clocks
from hashee.study.curves import nearest
from hashee.study.options import ReportOptions
from hashee.study.paper import TASKS
from hashee.study.results import OperatingPoint, RunResult, read_result, read_results
from hashee.study.tables import TABLES

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "study"
CLOCKS = "clocks-sst2*.json"
"""Files of times in the folder of results; each has the dense model that its rows are relative to."""
BEGIN = "<!-- benchmarks/study_pages.py writes from here -->"
TABLES_SHOWN = ("quality-at-cost", "quality-at-paper-cost", "elue", "hash-functions")
TASK, BACKBONE, BATCH = "sst2", "gte-small", 32
COSTS = (2.0, 3.0, 4.0, 6.0)
"""Times fewer operations than the whole backbone."""
FARTHEST = 1.3
"""A point that is more times cheaper or dearer than asked stands for no cost."""
NAMES = {
    "dense": "dense, 12 layers",
    "first-layers": "first k layers",
    "distilbert": "DistilBERT",
    "tinybert": "TinyBERT",
    "theseus": "BERT-of-Theseus",
    "head-prune": "HeadPrune",
    "deebert": "DeeBERT",
    "fastbert": "FastBERT",
    "pabee": "PABEE",
    "berxit": "BERxiT",
    "cascadebert": "CascadeBERT",
    "hash-rand-incons": "HashEE, random, not consistent",
    "hash-rand-cons": "HashEE, random",
    "hash-mi": "HashEE, mutual information",
    "hash-clustered": "HashEE, clustered",
    "hash-frequency": "HashEE, frequency",
    "hash-frequency-solved": "frequency, solved for the cost",
    "hash-importance-1": "importance, exits from 1",
    "hash-importance": "**importance, exits from 0**",
    "hash-depth": "**importance, with fewer layers**",
    "hash-x-exit": "**hash x exit**",
    "hash-depth-x-exit": "**hash x exit, with fewer layers**",
}


def main() -> None:
    """Write both parts anew."""
    for name, part in pages().items():
        write_part(ROOT / name, BEGIN, part)


def pages() -> dict[str, str]:
    """Return what stands between the markers of each page, as Markdown."""
    results = list(read_results(RESULTS))
    options = ReportOptions(clocks=RESULTS / "clocks.json", flops=RESULTS / "flops.json")
    tables = [TABLES[name](results, options).to_markdown() for name in TABLES_SHOWN]
    clocks = [read_clocks(path) for path in sorted(RESULTS.glob(CLOCKS))]
    return {"README.md": "\n".join(lines(clocks)) + "\n", "docs/results.md": "\n".join(tables)}


def lines(clocks: Sequence[Clocks]) -> Iterator[str]:
    """Yield the table, a row for each method that was run."""
    columns = ["method", *(f"about {cost:g}x fewer operations" for cost in COSTS)]
    yield "| " + " | ".join(columns) + " |"
    yield "|" + "---|" * len(columns)
    results = {
        result.method: (path, result)
        for path, result in _files()
        if (result.backbone, result.seed) == (BACKBONE, 0) and not result.settings.get("unlabelled")
    }
    for method, name in NAMES.items():
        if method in results:
            path, result = results[method]
            link = f"[{name}]({path.relative_to(ROOT).as_posix()})"
            cells = [_dense(result)] if method == "dense" else [_cell(result, cost, clocks) for cost in COSTS]
            yield "| " + " | ".join([link, *cells, *[""] * (len(COSTS) - len(cells))]) + " |"


def _files() -> Iterator[tuple[Path, RunResult]]:
    for path in sorted((RESULTS / TASK).glob("*-seed*.json")):
        yield path, read_result(path)


def _dense(result: RunResult) -> str:
    return f"{_percent(result.curve[0])} at 1x"


def _cell(result: RunResult, cost: float, clocks: Sequence[Clocks]) -> str:
    point = nearest(result.curve, cost)
    if abs(math.log(point.speedup / cost)) > math.log(FARTHEST):
        return ""
    return f"{_percent(point)} · {point.speedup:.1f}x · {_measured(result, point, clocks)}"


def _percent(point: OperatingPoint) -> str:
    return f"{100 * (point.dev if point.test is None else point.test):.1f}"


def _measured(result: RunResult, point: OperatingPoint, clocks: Sequence[Clocks]) -> str:
    """Return how many times as fast as the dense model of the same run, on the same engine, a point was measured."""
    for run in clocks:
        medians = {
            (row.method, row.candidate, row.knob): row.median
            for row in run.rows
            if row.texts == TASKS[TASK] and row.batch == BATCH
        }
        dense = next(median for (method, *_), median in medians.items() if method == "dense")
        own = medians.get((result.method, point.candidate, point.knob))
        if own is not None:
            return f"{dense / own:.1f}x"
    return "-"


if __name__ == "__main__":
    main()
