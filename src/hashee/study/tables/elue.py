"""The main comparison: every method on ELUE's tasks at about the cost that the paper gives for it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import mean

from hashee.data.elue import Point
from hashee.study.curves import Reached, baseline_curve, notes_on_data, reached, score_above
from hashee.study.options import ReportOptions
from hashee.study.paper import ELUE, HASHEE, SYSTEMS, TASKS, Reported, System, system_of
from hashee.study.results import RunResult
from hashee.study.tables.table import NOT_APPLICABLE, NOT_RUN, Cell, Content, Table, signed, times, without_repeats

FULL_DEPTH = 1.0
"""Speed-up at which the dense model is shown."""


def elue(results: list[RunResult], options: ReportOptions) -> Table:
    """Set each method beside the paper's system, backbone by backbone."""
    results = options.select(results)
    tasks = [task for task in TASKS if options.task in (None, task)]
    rows: list[tuple[Content, ...]] = []
    for backbone in dict.fromkeys(result.backbone for result in results):
        own = [result for result in results if result.backbone == backbone and not _is_part(result)]
        rows += _rows(own, backbone, tasks)
    if not rows:
        rows = [row for system in SYSTEMS for row in (_paper(system, tasks), _not_run(system.method, "", tasks))]
    return Table(
        "ELUE: quality in percent on test (times fewer multiply-accumulates than the whole backbone)",
        ("method", *(TASKS[task] for task in tasks), "ELUE score"),
        tuple(rows),
        without_repeats([*_notes(tasks), *notes_on_data(results)]),
    )


def _is_part(result: RunResult) -> bool:
    """Say whether a run is of a backbone cut shorter or of other buckets, which have tables of their own."""
    return bool(result.settings.get("depth") or result.settings.get("num_buckets"))


def _rows(results: Sequence[RunResult], backbone: str, tasks: Sequence[str]) -> list[tuple[Content, ...]]:
    """Return two rows for each method of the paper, ours and the paper's, and one for each other method."""
    known = list(dict.fromkeys(system.method for system in SYSTEMS))
    others = list(dict.fromkeys(result.method for result in results if result.method not in known))
    baselines = {task: baseline_curve(results, task, backbone) for task in tasks}
    rows: list[tuple[Content, ...]] = []
    for method in [*known, *others]:
        own = [result for result in results if result.method == method]
        system = system_of(method, backbone)
        rows.append(_ours(own, method, backbone, baselines) if own else _not_run(method, backbone, tasks))
        if system is not None:
            rows.append(_paper(system, tasks))
    return rows


def _ours(
    results: Sequence[RunResult], method: str, backbone: str, baselines: Mapping[str, Sequence[Point]]
) -> tuple[Content, ...]:
    """Return what we measured, each task at the operating point nearest to the paper's cost, and the ELUE score."""
    system = system_of(method, backbone) or HASHEE
    cells: list[Content] = []
    scores: dict[str, float] = {}
    for task, baseline in baselines.items():
        seeds = [result for result in results if result.task == task]
        found = reached(seeds, _target(method, system.reported[task]))
        if found is None:
            cells.append(NOT_APPLICABLE if any(result.not_applicable for result in seeds) else NOT_RUN)
            continue
        score = score_above(baseline, found)
        if score is not None:
            scores[task] = score
        cells.append(_cell(found, score))
    return (f"{method} ({backbone})", *cells, _score(scores, len(baselines)))


def _target(method: str, reported: Reported | None) -> float:
    """Return the speed-up at which a method is shown: the paper's, HashEE's mean where the paper has none."""
    if method == "dense":
        return FULL_DEPTH
    if reported is not None:
        return reported.speedup
    return mean(each.speedup for each in HASHEE.reported.values() if each is not None)


def _cell(found: Reached, score: float | None) -> Cell:
    spread = "" if found.std is None else f" ±{found.std:.1f}"
    values = {"source": "ours", **asdict(found), "elue_score": score}
    return Cell(f"{found.quality:.1f}{spread} ({times(found.speedup)})", values)


def _score(scores: Mapping[str, float], tasks: int) -> Content:
    """Return the mean over the tasks; over fewer than all, their number beside it."""
    if not scores:
        return NOT_APPLICABLE
    value = mean(scores.values())
    part = "" if len(scores) == tasks else f" ({len(scores)} of {tasks})"
    return Cell(f"{signed(value)}{part}", {"elue_score": value, "by_task": dict(scores)})


def _not_run(method: str, backbone: str, tasks: Sequence[str]) -> tuple[Content, ...]:
    name = f"{method} ({backbone})" if backbone else method
    return (name, *(NOT_RUN for _ in tasks), NOT_RUN)


def _paper(system: System, tasks: Sequence[str]) -> tuple[Content, ...]:
    cells: list[Content] = []
    for task in tasks:
        reported = system.reported[task]
        if reported is None:
            cells.append(NOT_APPLICABLE)
        else:
            values = {"source": "paper", **asdict(reported)}
            cells.append(Cell(f"{reported.quality:.1f} ({times(reported.speedup)})", values))
    score: Content = NOT_APPLICABLE
    if system.elue_score is not None:
        score = Cell(signed(system.elue_score), {"elue_score": system.elue_score})
    return (f"  paper: {system.name}", *cells, score)


def _notes(tasks: Sequence[str]) -> list[str]:
    notes = [
        "ours: mean over seeds (± standard deviation) at the operating point that is nearest to the paper's speed-up "
        "among those to which dev prefers none as cheap; speed-up: of executed operations, over the whole backbone",
        "ours, ELUE score: percent points above the curve of the dense model and its first layers (same backbone, task "
        "and cost), mean over tasks; the paper's is above ElasticBERT",
        f"paper: {ELUE.label}; ElasticBERT-base unless the name says otherwise, speed-up over 12-layer BERT-base; "
        "methods that the paper lacks are shown at HashEE's speed-up",
    ]
    if len(tasks) < len(TASKS):
        notes.append(f"the paper's ELUE score is the mean over all {len(TASKS)} tasks")
    return notes
