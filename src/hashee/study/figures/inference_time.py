"""Measured time per text against batch size, with short and long texts."""

from typing import Any

from hashee.errors import InputError
from hashee.study.clocks import LONG, SHORT, read_clocks
from hashee.study.figures.style import heading, in_order, legend_beside, look_of, new_figure, note
from hashee.study.options import ReportOptions
from hashee.study.results import RunResult

_NAMES = {SHORT: "short texts (SNLI)", LONG: "long texts (IMDb)"}


def inference_time(results: list[RunResult], options: ReportOptions) -> Any:
    """Draw a line for each method, the median of its rounds, with the spread of the rounds as bars."""
    if not options.clocks.exists():
        raise InputError(
            f"there is no file {options.clocks} of measured times; measure them first with `hashee study clock`"
        )
    clocks = read_clocks(options.clocks)
    kinds = [texts for texts in (SHORT, LONG) if clocks.of(texts)]
    if not kinds:
        raise InputError(f"{options.clocks} has no rows")
    methods = in_order(row.method for row in clocks.rows)
    figure, all_axes = new_figure(3.2 + 4 * len(kinds), 4.6, len(kinds))
    for axes, texts in zip(all_axes, kinds, strict=True):
        found = clocks.of(texts)
        for number, method in enumerate(methods):
            rows = found.get(method, [])
            middle = [1000 * row.median for row in rows]
            lower = [1000 * (row.median - min(row.seconds_per_text)) for row in rows]
            upper = [1000 * (max(row.seconds_per_text) - row.median) for row in rows]
            batches = [row.batch for row in rows]
            look = look_of(method, number).options()
            axes.errorbar(batches, middle, yerr=[lower, upper], capsize=2, elinewidth=0.8, **look)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        batches = sorted({row.batch for rows in found.values() for row in rows})
        axes.set_xticks(batches, [str(batch) for batch in batches])
        _plain_ticks(axes)
        axes.minorticks_off()
        axes.set_xlabel("batch size")
        heading(axes, _NAMES[texts])
    all_axes[0].set_ylabel("milliseconds per text")
    legend_beside(figure, all_axes[0])
    note(figure, "; ".join(filter(None, ("median and range of rounds", clocks.machine))))
    return figure


def _plain_ticks(axes: Any) -> None:
    """Label the logarithmic axis of time at 1, 2 and 5 times powers of ten, as numbers rather than powers."""
    low, high = axes.get_ylim()
    ticks = [float(f"{digit}e{power}") for power in range(-6, 7) for digit in (1, 2, 5)]
    ticks = [tick for tick in ticks if low <= tick <= high]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
