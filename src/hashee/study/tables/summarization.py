"""Models that write text: ROUGE and the speed-ups of encoder, decoder and both, beside the paper's."""

from collections.abc import Sequence
from dataclasses import asdict
from statistics import mean, stdev

from hashee.data.run_record import PARTS
from hashee.study.curves import nearest, notes_on_data
from hashee.study.options import ReportOptions
from hashee.study.paper import SUMMARIZATION, SUMMARIZERS, Summarizer
from hashee.study.results import OperatingPoint, RunResult, WritingPoint
from hashee.study.tables.table import NOT_APPLICABLE, NOT_RUN, Cell, Content, Table, times, without_repeats

TARGET = 2.0
"""Total speed-up at which methods are shown; the paper's are at 1.8x to 2.2x."""
DATASETS = {"cnndailymail": "CNN/DM", "reddittifu": "Reddit", "csl": "CSL"}
"""The paper's datasets that are at hand, as it writes them."""
METHODS = (
    "lead",
    "dense",
    "first-layers",
    "shallow-seq2seq",
    "dat",
    "hash-frequency",
    "hash-importance",
    "hash-decoder",
)
"""In the order of the table; others follow."""
ROUGE = ("rouge1", "rouge2", "rougeL")
NOTHING = 1e6
"""Speed-ups above are those of methods that compute nothing."""


def summarization(results: list[RunResult], options: ReportOptions) -> Table:
    """Set each method at about twice the speed beside the dense model, and beside the paper's rows of the dataset."""
    written = [result for result in options.select(results) if _writes(result)]
    tasks = list(dict.fromkeys([*(result.task for result in written), *DATASETS]))
    rows: list[tuple[Content, ...]] = []
    for task in tasks:
        if options.task in (None, task):
            own = [result for result in written if result.task == task]
            rows += _ours(own) or [(task, NOT_RUN, *[None] * 6)]
            rows += [_papers(task, system) for system in SUMMARIZERS if DATASETS.get(task) in system.rouge]
    return Table(
        f"Summarization: at about {TARGET:g} times fewer multiply-accumulates of encoder and decoder together",
        ("dataset", "method", "ROUGE-1/2/L", "of dense", *PARTS, "time"),
        tuple(rows),
        without_repeats([*_NOTES, *notes_on_data([result for result in written if result.passes])]),
    )


_NOTES = (
    "ours: mean over seeds of the operating point nearest to the total speed-up among those to which dev prefers none "
    "as cheap; speed-ups: what the dense baseline costs for the texts that it wrote (paper's count) / what is executed "
    "for the texts that the method wrote, without the scores of the vocabulary at the end of a step; those that dat "
    "asks for before count",
    "of dense: share of the dense model's first metric; time: times less than the dense baseline took to write for the "
    "same documents in the same run",
    f"paper: {SUMMARIZATION.label}; BART-base and CPT-base, speed-ups averaged over datasets",
)


def _writes(result: RunResult) -> bool:
    return bool(result.curve) and all(point.writing is not None for point in result.curve)


def _ours(results: Sequence[RunResult]) -> list[tuple[Content, ...]]:
    """Return a row for each backbone and method of one task."""
    rows: list[tuple[Content, ...]] = []
    for backbone in dict.fromkeys(result.backbone for result in results):
        own = [result for result in results if result.backbone == backbone]
        found = {method: [each for each in own if each.method == method] for method in _order(own)}
        dense = _points(found["dense"]) if "dense" in found else []
        rows += [_row(seeds, dense) for seeds in found.values()]
    return rows


def _order(results: Sequence[RunResult]) -> list[str]:
    """Return the methods that were run, and their variants after each."""
    there = list(dict.fromkeys(result.method for result in results))
    return sorted(there, key=lambda name: (METHODS.index(name) if name in METHODS else len(METHODS), name))


def _points(seeds: Sequence[RunResult]) -> list[OperatingPoint]:
    """Return the operating point of each seed that is shown."""
    return [nearest(result.curve, TARGET) for result in seeds]


def _row(seeds: Sequence[RunResult], dense: Sequence[OperatingPoint]) -> tuple[Content, ...]:
    first, points = seeds[0], _points(seeds)
    return (
        first.task,
        f"{first.method} ({first.backbone})",
        _quality(points),
        _kept(points, dense),
        *(_speedup(part, points) for part in PARTS),
        _time(points),
    )


def _quality(points: Sequence[OperatingPoint]) -> Cell:
    """Return the metrics on test, or on dev without one, in percent."""
    rows = [_metrics(point) for point in points]
    names = [name for name in ROUGE if name in rows[0]] or [name for name in rows[0] if name != "score"]
    means = {name: 100 * mean(row[name] for row in rows) for name in names}
    std = stdev(100 * row[names[0]] for row in rows) if len(rows) > 1 else None
    spread = "" if std is None else f" ±{std:.1f}"
    label = "" if names[0] in ROUGE else f"{', '.join(names)} "
    shown = "/".join(f"{value:.1f}" for value in means.values())
    knobs = [point.knob for point in points]
    return Cell(f"{label}{shown}{spread}", {"source": "ours", **means, "std": std, "seeds": len(rows), "knobs": knobs})


def _metrics(point: OperatingPoint) -> dict[str, float]:
    metrics = _writing(point).metrics
    return dict(metrics["test"] if "test" in metrics else metrics["dev"])


def _kept(points: Sequence[OperatingPoint], dense: Sequence[OperatingPoint]) -> Content:
    if not dense:
        return NOT_RUN
    whole = mean(_metrics(point)["score"] for point in dense)
    if not whole:
        return NOT_APPLICABLE
    share = mean(_metrics(point)["score"] for point in points) / whole
    return Cell(f"{share:.0%}", {"source": "ours", "share": share})


def _speedup(name: str, points: Sequence[OperatingPoint]) -> Content:
    parts = [asdict(getattr(_writing(point), name)) for point in points]
    means = {key: mean(part[key] for part in parts) for key in parts[0]}
    if means["speedup"] > NOTHING:
        return NOT_APPLICABLE
    return Cell(times(means["speedup"]), {"source": "ours", **means})


def _time(points: Sequence[OperatingPoint]) -> Content:
    """Return how many times less time the whole took, and each part behind it."""
    if any(point.speedup > NOTHING for point in points):
        return NOT_APPLICABLE
    found: dict[str, float | None] = {}
    for name in PARTS:
        ratios = [getattr(_writing(point), name).time_speedup for point in points]
        found[name] = None if None in ratios else mean(ratios)
    return NOT_APPLICABLE if found["total"] is None else Cell(times(found["total"]), {"source": "ours", **found})


def _writing(point: OperatingPoint) -> WritingPoint:
    assert point.writing is not None  # results without are left out
    return point.writing


def _papers(task: str, system: Summarizer) -> tuple[Content, ...]:
    rouge = system.rouge[DATASETS[task]]
    dense = next(each for each in SUMMARIZERS if each.method == "dense" and each.family == system.family)
    share: Content = None
    if DATASETS[task] in dense.rouge:
        value = rouge[0] / dense.rouge[DATASETS[task]][0]
        share = Cell(f"{value:.0%}", {"source": "paper", "share": value})
    quality = Cell(
        "/".join(f"{value:.1f}" for value in rouge), {"source": "paper", **dict(zip(ROUGE, rouge, strict=True))}
    )
    speedups = [
        Cell(times(getattr(system, part)), {"source": "paper", "speedup": getattr(system, part)}) for part in PARTS
    ]
    return (task, f"  paper: {system.name}", quality, share, *speedups, None)
