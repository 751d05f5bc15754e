"""Quality against cost for several backbones on one task."""

from typing import Any

from hashee.errors import InputError
from hashee.study.curves import by_variant, dev_front, mean_curve, quality, split_of
from hashee.study.figures.style import heading, in_order, legend_beside, look_of, new_figure, note, speedup_axis
from hashee.study.options import ReportOptions
from hashee.study.paper import TASKS
from hashee.study.results import RunResult

COLUMNS = 3
"""Most backbones that are drawn side by side in one figure."""


def backbones(results: list[RunResult], options: ReportOptions) -> Any:
    """Draw the methods of each backbone in axes of their own, which share the scale of quality."""
    task = options.one_task([result for result in results if result.curve])
    chosen = [result for result in options.select(results) if result.curve and result.task == task]
    names = list(dict.fromkeys(result.backbone for result in chosen))
    if not names:
        raise InputError(f"there are no results on {task}; run some first with `hashee study run`")
    if len(names) > COLUMNS:
        raise InputError(f"the figure has room for {COLUMNS} backbones, not for {', '.join(names)}; choose one")
    split = split_of(chosen)
    groups = {
        (variant.backbone, variant.method): dev_front(mean_curve(seeds))
        for variant, seeds in by_variant(chosen).items()
        if (variant.depth, variant.buckets) == (variant.layers, variant.layers)
    }
    figure, all_axes = new_figure(3.2 + 3.4 * len(names), 4.6, len(names))
    methods = in_order(method for _, method in groups)
    for axes, name in zip(all_axes, names, strict=True):
        for number, method in enumerate(methods):
            # An empty line keeps the one legend complete where a backbone lacks the method.
            front = groups.get((name, method), [])
            values = [100 * (quality(point, split) or 0.0) for point in front]
            axes.plot([point.speedup for point in front], values, **look_of(method, number).options())
        own = [point.speedup for (backbone, _), front in groups.items() if backbone == name for point in front]
        speedup_axis(axes, own)
        heading(axes, name)
        axes.sharey(all_axes[0])
    all_axes[0].set_ylabel(f"{chosen[0].metric.replace('_', ' ')} on {split}, %", parse_math=False)
    figure.suptitle(TASKS.get(task, task), x=0.01, ha="left", fontsize=12, fontweight="bold")
    legend_beside(figure, all_axes[0])
    note(figure, "times fewer multiply-accumulates executed than by the whole backbone of the same name")
    return figure
