"""Quality against cost of all methods on one task with one backbone."""

from collections.abc import Sequence
from statistics import stdev
from typing import Any

from hashee.errors import InputError
from hashee.study.curves import Split, by_variant, dev_front, mean_curve, quality, split_of
from hashee.study.figures.style import heading, in_order, legend_beside, look_of, new_figure, note, speedup_axis
from hashee.study.options import ReportOptions
from hashee.study.paper import TASKS
from hashee.study.results import OperatingPoint, RunResult


def quality_cost(results: list[RunResult], options: ReportOptions) -> Any:
    """Draw a line for each method through the operating points that dev would choose."""
    task = options.one_task([result for result in results if result.curve])
    chosen = [result for result in options.select(results) if result.curve and result.task == task]
    backbones = list(dict.fromkeys(result.backbone for result in chosen))
    if len(backbones) != 1:
        found = f"there are results with {', '.join(backbones)}" if backbones else "there are no results"
        raise InputError(f"the figure shows one backbone on {task}; {found}: choose with --backbone, or run it first")
    whole = {
        variant: seeds
        for variant, seeds in by_variant(chosen).items()
        if (variant.depth, variant.buckets) == (variant.layers, variant.layers)
    }
    groups = {variant.method: seeds for variant, seeds in whole.items()}
    split = split_of(result for seeds in groups.values() for result in seeds)
    figure, (axes,) = new_figure(10.5, 5.6)
    speedups: list[float] = []
    for number, method in enumerate(in_order(groups)):
        speedups += _draw(axes, groups[method], method, number, split)
    speedup_axis(axes, speedups)
    axes.set_xlabel("times fewer multiply-accumulates executed than by the whole backbone")
    axes.set_ylabel(f"{chosen[0].metric.replace('_', ' ')} on {split}, %", parse_math=False)
    heading(axes, f"{TASKS.get(task, task)}, {backbones[0]}")
    legend_beside(figure, axes)
    seeds = max(len(each) for each in groups.values())
    spread = f"; bars: standard deviation over {seeds} seeds" if seeds > 1 else ""
    note(
        figure, f"operating points to which dev prefers none as cheap{spread}; thick: HashEE and tables of this project"
    )
    return figure


def _draw(axes: Any, seeds: Sequence[RunResult], method: str, number: int, split: Split) -> list[float]:
    front = dev_front(mean_curve(seeds))
    rates = [point.speedup for point in front]
    values = [100 * (quality(point, split) or 0.0) for point in front]
    spreads = [_spread(seeds, point, split) for point in front] if len(seeds) > 1 else None
    axes.errorbar(rates, values, yerr=spreads, capsize=2, elinewidth=0.8, **look_of(method, number).options())
    return rates


def _spread(seeds: Sequence[RunResult], mean: OperatingPoint, split: Split) -> float:
    """Return the standard deviation over seeds at a point of the mean curve."""
    same = [
        point
        for result in seeds
        for point in result.curve
        if (point.candidate, point.knob) == (mean.candidate, mean.knob)
    ]
    return 100 * stdev(quality(point, split) or 0.0 for point in same)
