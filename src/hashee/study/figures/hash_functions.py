"""ELUE scores of the hash functions."""

from statistics import mean
from typing import Any

from hashee.errors import InputError
from hashee.study.curves import baseline_curve, reached, score_above
from hashee.study.figures.style import heading, look_of, new_figure, note
from hashee.study.options import ReportOptions
from hashee.study.paper import TASKS
from hashee.study.results import RunResult

HASHES = ("hash-rand-incons", "hash-rand-cons", "hash-clustered", "hash-mi", "hash-frequency", "hash-importance-1")
"""Tables that are compared, those of the paper and one by importance at the cost of the frequency hash."""
# Hatches tell the bars of tasks apart where colours do not.
_HATCHES = ("", "///", "...", "xxx", "\\\\\\", "+++")


def hash_functions(results: list[RunResult], options: ReportOptions) -> Any:
    """Draw a bar for each hash function and task: percent points above the models with fewer layers at its cost."""
    scores = hash_scores(options.select(results))
    tasks = [task for task in TASKS if any(task in by_task for by_task in scores.values())]
    if not tasks:
        raise InputError(
            "there is nothing to draw: ELUE scores need results of a hash function and of first-layers and dense with "
            "the same task and backbone"
        )
    methods = [method for method in HASHES if method in scores]
    figure, (axes,) = new_figure(7.0 + 1.1 * len(tasks), 4.8)
    width = 0.8 / len(tasks)
    for number, task in enumerate(tasks):
        places = [place for place, method in enumerate(methods) if task in scores[method]]
        heights = [scores[methods[place]][task] for place in places]
        offset = (number - (len(tasks) - 1) / 2) * width
        bars = axes.bar(
            [place + offset for place in places],
            heights,
            width * 0.92,
            label=TASKS[task],
            color=str(0.45 + 0.45 * number / max(len(tasks) - 1, 1)),
            edgecolor="black",
            hatch=_HATCHES[number % len(_HATCHES)],
        )
        # Many narrow bars have room for upright labels only.
        axes.bar_label(bars, fmt="%+.1f", fontsize=7.5, padding=3, rotation=90 if len(tasks) > 3 else 0)
    axes.axhline(0, color="black", linewidth=1)
    names = [
        look_of(method).label.removeprefix("hash, ").replace(", ", ",\n").replace(" (", "\n(") for method in methods
    ]
    axes.set_xticks(range(len(methods)), names, fontsize=9)
    axes.margins(y=0.15)
    axes.set_ylabel("ELUE score, percent points")
    heading(axes, "Hash functions")
    figure.legend(loc="outside right upper", frameon=False)
    note(figure, "above the dense model and its first layers at the same executed cost, same task and backbone")
    return figure


def hash_scores(results: list[RunResult]) -> dict[str, dict[str, float]]:
    """Return the ELUE score of each hash function on each task, as the mean over backbones."""
    scores: dict[str, dict[str, float]] = {}
    for method in HASHES:
        for task in TASKS:
            found = []
            for backbone in dict.fromkeys(result.backbone for result in results):
                seeds = [
                    each for each in results if (each.method, each.task, each.backbone) == (method, task, backbone)
                ]
                point = reached(seeds, _cost_of_frequency(results, task, backbone))
                score = None if point is None else score_above(baseline_curve(results, task, backbone), point)
                if score is not None:
                    found.append(score)
            if found:
                scores.setdefault(method, {})[task] = mean(found)
    return scores


def _cost_of_frequency(results: list[RunResult], task: str, backbone: str) -> float:
    """Return the speed-up of the frequency hash, at which tables of any cost are compared; 3 where it was not run."""
    seeds = [each for each in results if (each.method, each.task, each.backbone) == ("hash-frequency", task, backbone)]
    found = reached(seeds, 1.0)
    return 3.0 if found is None else found.speedup
