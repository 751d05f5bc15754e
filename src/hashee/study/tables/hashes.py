"""What the tables of hash functions and of buckets share: rows of one exit table each, ours beside the paper's."""

from collections.abc import Sequence
from dataclasses import asdict
from statistics import mean

from hashee.study.curves import Reached, Variant, by_variant, reached
from hashee.study.paper import TASKS, THREE_TASKS, HashResult
from hashee.study.results import RunResult
from hashee.study.tables.table import NOT_RUN, Cell, Content, times

PAPER_DEPTH = 12
"""Layers of what the paper's speed-ups are relative to."""


def rows_of(results: Sequence[RunResult], papers: HashResult, label: tuple[Content, ...]) -> list[tuple[Content, ...]]:
    """Return the paper's row and one of ours for each backbone that was run at that depth with so many buckets."""
    groups = {
        variant: seeds
        for variant, seeds in by_variant(results).items()
        if variant.method == f"hash-{papers.hash}"
        and (variant.depth, variant.buckets) == (papers.layers, papers.buckets)
        and variant.task in THREE_TASKS
    }
    rows = [(*label, "paper", times(papers.speedup), *_papers(papers))]
    backbones = list(dict.fromkeys(variant.backbone for variant in groups))
    for backbone in backbones:
        own = {variant: seeds for variant, seeds in groups.items() if variant.backbone == backbone}
        rows.append((*label, backbone, *_ours(own)))
    if not backbones:
        rows.append((*label, "ours", NOT_RUN, *(NOT_RUN for _ in THREE_TASKS)))
    return rows


COLUMNS = ("backbone", "speed-up", *(TASKS[task] for task in THREE_TASKS))


def _papers(papers: HashResult) -> list[Content]:
    return [
        Cell(_with_spread(spread.mean, spread.std), {"source": "paper", **asdict(spread)})
        for spread in (papers.quality[task] for task in THREE_TASKS)
    ]


def _ours(groups: dict[Variant, list[RunResult]]) -> list[Content]:
    cells: list[Content] = []
    speedups = []
    for task in THREE_TASKS:
        variant = next((variant for variant in groups if variant.task == task), None)
        # A table of its own cost has one operating point, whatever speed-up is asked for.
        found = None if variant is None else reached(groups[variant], 1.0)
        if variant is None or found is None:
            cells.append(NOT_RUN)
            continue
        speedups.append(over_twelve_layers(variant, found))
        cells.append(Cell(_with_spread(found.quality, found.std), {"source": "ours", **asdict(found)}))
    if not speedups:
        return [NOT_RUN, *cells]
    return [Cell(times(mean(speedups)), {"speedup": mean(speedups), "tasks": len(speedups)}), *cells]


def over_twelve_layers(variant: Variant, found: Reached) -> float:
    """Return the speed-up by the paper's count relative to 12 layers of the backbone's width."""
    return found.paper_speedup * PAPER_DEPTH / variant.layers


def _with_spread(value: float, std: float | None) -> str:
    return f"{value:.1f}" if std is None else f"{value:.1f} ±{std:.2f}"


NOTES = (
    "quality in percent; ours: mean over seeds (± standard deviation)",
    "speed-up: by the paper's count over 12 layers of the same width, mean over the tasks that were run",
)
