"""The paper's figures of difficulty: what is fitted and what generalises, and how far predictors get."""

from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from hashee.errors import InputError
from hashee.study.difficulty.results import DifficultyResult, Group, by_group, read_results
from hashee.study.figures.style import heading, new_figure, note
from hashee.study.options import ReportOptions
from hashee.study.paper import DIFFICULTIES, HUMAN_ACCURACY
from hashee.study.results import RunResult

ORDER = ("Majority", "Linear-M", "Linear-B", "BiLSTM", "Transformer")
_PAPERS = {"Transformer": "BERT"}
_BARS = (("accuracy", "#BBBBBB", ""), ("f1", "#0072B2", "///"))
Groups = Mapping[Group, Sequence[DifficultyResult]]


def difficulty(results: list[RunResult], options: ReportOptions) -> Any:
    """Draw the training curve of human-defined difficulty, and accuracy and F1 of the predictors of each other set."""
    own = [each for each in read_results(options.difficulty) if options.backbone in (None, each.backbone, "")]
    groups = {group: seeds for group, seeds in by_group(own).items() if not group.variant}
    human = {group: seeds for group, seeds in groups.items() if group.level == "human" and seeds[0].curve}
    sets = list(dict.fromkeys(group.data for group in groups if group.level != "human"))
    if options.task is not None:
        sets = [name for name in sets if name == options.task]
    panels = (1 if human else 0) + len(sets)
    if not panels:
        raise InputError(f"there is nothing to draw in {options.difficulty}; run `hashee study difficulty run` first")
    figure, axes = new_figure(5.6 * panels, 4.6, panels)
    remaining = list(axes)
    if human:
        _curves(remaining.pop(0), human)
    for place, name in zip(remaining, sets, strict=True):
        _bars(place, {group: seeds for group, seeds in groups.items() if group.data == name})
    note(
        figure, "F1: micro-average over the negative label, a layer that is wrong; diamonds: the paper, with BERT-base"
    )
    return figure


def _curves(axes: Any, groups: Groups) -> None:
    """Draw accuracy on train and test after each pass, as the mean over seeds."""
    colours = ("#D55E00", "#0072B2", "#009E73", "#CC79A7")
    for number, (group, seeds) in enumerate(groups.items()):
        shortest = min(len(each.curve) for each in seeds)
        passes = [seeds[0].curve[index].epoch for index in range(shortest)]
        for split, line in (("train", "--"), ("test", "-")):
            heights = [
                100 * mean(getattr(each.curve[index], f"{split}_accuracy") for each in seeds)
                for index in range(shortest)
            ]
            label = f"{group.predictor}, {group.backbone}, {split}"
            axes.plot(
                passes, heights, line, color=colours[number % len(colours)], marker="o", markersize=4, label=label
            )
    axes.axhline(HUMAN_ACCURACY, color="#555555", linestyle=":", label="the paper's test accuracy, about")
    axes.set_ylim(45, 101)
    axes.set_xlabel("passes over train")
    axes.set_ylabel("accuracy, percent")
    axes.legend(frameon=False, fontsize=8)
    heading(axes, "Human-defined difficulty")


def _bars(axes: Any, groups: Groups) -> None:
    """Draw two bars for each predictor, and the paper's F1 as a diamond."""
    ordered = sorted(groups.items(), key=lambda each: (_place(each[0].predictor), each[0].backbone))
    level = ordered[0][0].level
    for offset, (name, colour, hatch) in zip((-0.2, 0.2), _BARS, strict=True):
        values = [[100 * (getattr(each, name) or 0.0) for each in seeds] for _, seeds in ordered]
        bars = axes.bar(
            [place + offset for place in range(len(ordered))],
            [mean(each) for each in values],
            0.38,
            yerr=[stdev(each) if len(each) > 1 else 0.0 for each in values],
            color=colour,
            hatch=hatch,
            edgecolor="black",
            label={"f1": "F1, negative label"}.get(name, name),
        )
        axes.bar_label(bars, fmt="%.1f", fontsize=7.5, padding=2)
    papers = {each.model: each.f1 for each in DIFFICULTIES if each.level == level}
    found = [
        (place + 0.2, f1)
        for place, (group, _) in enumerate(ordered)
        if (f1 := papers.get(_PAPERS.get(group.predictor, group.predictor))) is not None
    ]
    axes.plot(*zip(*found, strict=True), "D", color="#D55E00", markersize=7, label="F1 in the paper")
    names = [f"{group.predictor}\n{group.backbone}" if group.backbone else group.predictor for group, _ in ordered]
    axes.set_xticks(range(len(ordered)), names, fontsize=8)
    axes.set_ylim(0, 100)
    axes.set_ylabel("percent")
    axes.legend(frameon=False, fontsize=8, loc="upper left", ncols=3)
    heading(axes, f"{level.capitalize()} level: {ordered[0][0].data}")


def _place(predictor: str) -> int:
    return ORDER.index(predictor) if predictor in ORDER else len(ORDER)
