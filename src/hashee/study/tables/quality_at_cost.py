"""All methods at the same costs: quality interpolated along each method's curve."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import mean, stdev

from hashee.study.curves import at_cost, by_variant, notes_on_data, split_of
from hashee.study.options import ReportOptions
from hashee.study.paper import TASKS
from hashee.study.results import RunResult
from hashee.study.tables.table import NOT_APPLICABLE, Cell, Content, Table, without_repeats

COSTS = (1.0, 2.0, 3.0, 4.0, 6.0, 10.0)
"""Speed-ups over the whole backbone; 1 shows what each method is at its slowest, the dense model among them."""


def quality_at_cost(results: list[RunResult], options: ReportOptions) -> Table:
    """Compare methods at up to 10 times fewer operations, task by task and backbone by backbone."""
    return _compared(options.select(results), "executed")


def quality_at_paper_cost(results: list[RunResult], options: ReportOptions) -> Table:
    """Compare methods at the same costs by the paper's count, in which no method has savings of the engine."""
    counted = [
        replace(result, curve=tuple(replace(point, speedup=point.paper_speedup) for point in result.curve))
        for result in options.select(results)
    ]
    return _compared(counted, "by the paper's count")


def _compared(results: Sequence[RunResult], count: str) -> Table:
    chosen = [result for result in results if result.curve]
    groups = sorted(by_variant(chosen).items(), key=lambda item: (item[0].task, item[0].backbone))
    rows = []
    for variant, seeds in groups:
        depth = "" if variant.depth == variant.layers else f", {variant.depth} layers"
        where = f"{TASKS.get(variant.task, variant.task)}, {variant.backbone}{depth}"
        rows.append((variant.method, where, *(quality_at(seeds, cost) for cost in COSTS)))
    return Table(
        f"Quality in percent at the same cost, {count}",
        ("method", "task, backbone", *(f"{cost:g}x" for cost in COSTS)),
        tuple(rows),
        without_repeats(
            [
                f"columns: times fewer operations than the whole backbone, {count}; quality is interpolated between "
                "the operating points that dev would choose, linearly in the logarithm of the speed-up",
                "-: the method is never so fast; where its slowest point is faster than asked, that point is shown",
                *notes_on_data(chosen),
            ]
        ),
    )


def quality_at(seeds: Sequence[RunResult], cost: float) -> Content:
    """Return the mean quality of a method's seeds at a speed-up."""
    split = split_of(seeds)
    found = [at_cost(result.curve, cost, split) for result in seeds]
    values = [100 * value for value in found if value is not None]
    # A mean over those seeds alone that get so far would not be comparable.
    if len(values) < len(seeds):
        return NOT_APPLICABLE
    std = stdev(values) if len(values) > 1 else None
    spread = "" if std is None else f" ±{std:.1f}"
    return Cell(
        f"{mean(values):.1f}{spread}", {"quality": mean(values), "std": std, "seeds": len(values), "split": split}
    )
