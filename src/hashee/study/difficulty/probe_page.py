"""The page of a probe: a verdict that follows from the numbers, a table, and a figure."""

from pathlib import Path
from typing import Any

from hashee.files import replaced_atomically
from hashee.study.difficulty.hypothesis_results import Comparison
from hashee.study.difficulty.probe import Point, Probe
from hashee.study.figures.style import heading, new_figure, save, speedup_axis
from hashee.study.tables.table import Table, times

PAGE, FIGURE = "probe.md", "probe.png"


def write_page(probe: Probe, folder: Path) -> Path:
    """Write `probe.md`, `probe.png` and `probe.json` to a folder, and return the page."""
    probe.write(folder)
    save(draw(probe), folder / FIGURE)
    lines = [
        f"# Could learned exits work on {probe.task}?",
        "",
        *(f"{sentence}\n" for sentence in verdict(probe)),
        f"![What layers get right, who can predict it, and what exits are worth]({FIGURE})",
        "",
        _predictors(probe).to_markdown(),
        _exits(probe).to_markdown(),
        f"All figures are of {probe.texts:,} texts that no model was trained on, with the backbone {probe.backbone}; "
        "intervals are of 95 %, over texts.",
        *(f"\nNote: {note}." for note in probe.notes),
    ]
    with replaced_atomically(folder / PAGE) as unfinished:
        unfinished.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder / PAGE


def verdict(probe: Probe) -> list[str]:
    """Say what follows from the numbers: whether exits can be learned, and whether a hash is better."""
    learned, hashed = probe.against_shuffled, probe.against_hash
    told = {
        1: "**Yes, a learned exit could work here:** it is right more often than the same exits dealt out at random",
        0: "**There is no sign that an exit can be learned here:** it is about as often right as the same exits dealt "
        "out at random",
        -1: "**No:** a learned exit is right less often than the same exits dealt out at random",
    }
    better = {
        1: "**A hash is better:** at about the same cost it is right more often",
        0: "**A hash is as good, as far as these texts can tell,** and needs no classifiers and no decisions",
        -1: "**A learned exit is better than a hash:** at about the same cost it is right more often",
    }
    sentences = [
        f"{told[_sign(learned)]}, {_interval(learned)} at {times(learned.first_speedup)} fewer operations.",
        f"{better[_sign(hashed)]}: {hashed.first_accuracy:.1f} % at {times(hashed.first_speedup)} for the hash, "
        f"{hashed.second_accuracy:.1f} % at {times(hashed.second_speedup)} for the learned exit, {_interval(hashed)}; "
        f"the dense model has {probe.dense.accuracy:.1f} %.",
    ]
    majority = next((each for each in probe.predictors if each.predictor == "Majority"), None)
    others = [each for each in probe.predictors if each.predictor != "Majority"]
    if majority is not None and others:
        best = max(others, key=lambda each: each.f1 or 0.0)
        sentences.append(
            f"Of what layers get wrong, {best.predictor} finds {100 * best.recall:.0f} % (F1 "
            f"{100 * (best.f1 or 0):.1f}); always predicting the majority finds "
            f"{100 * majority.recall:.0f} % (F1 {100 * (majority.f1 or 0):.1f})."
        )
    return sentences


def _sign(comparison: Comparison) -> int:
    return 1 if comparison.low > 0 else -1 if comparison.high < 0 else 0


def _interval(comparison: Comparison) -> str:
    return f"{comparison.difference:+.1f} points ({comparison.low:+.1f} to {comparison.high:+.1f})"


def _predictors(probe: Probe) -> Table:
    rows = tuple(
        (
            each.predictor,
            *(
                None if value is None else 100 * value
                for value in (each.accuracy, each.precision, each.recall, each.f1)
            ),
        )
        for each in probe.predictors
    )
    return Table(
        "Predicting which layers are wrong, percent", ("predictor", "accuracy", "precision", "recall", "F1"), rows
    )


def _exits(probe: Probe) -> Table:
    learned, hashed = probe.against_shuffled, probe.against_hash
    rows = (
        ("dense", probe.dense.accuracy, times(probe.dense.speedup)),
        ("hash", hashed.first_accuracy, times(hashed.first_speedup)),
        ("learned exit", learned.first_accuracy, times(learned.first_speedup)),
        ("the same exits, shuffled", learned.second_accuracy, times(learned.second_speedup)),
        ("first right layer, if it were known", probe.oracle.accuracy, times(probe.oracle.speedup)),
    )
    return Table("Accuracy and cost", ("exits", "accuracy, percent", "fewer operations"), rows)


def draw(probe: Probe) -> Any:
    """Draw what each layer gets right, how far predictors get, and accuracy against cost."""
    figure, (layers, predictors, exits) = new_figure(14.5, 4.6, 3)
    numbers = range(1, len(probe.right) + 1)
    bars = layers.bar(numbers, [100 * share for share in probe.right], color="#BBBBBB", edgecolor="black")
    layers.bar_label(bars, fmt="%.0f", fontsize=8, padding=2)
    layers.set_xticks(list(numbers))
    layers.set_xlabel("layer")
    layers.set_ylabel("texts predicted rightly, percent")
    heading(layers, f"Layers on {probe.task}")
    names = [each.predictor for each in probe.predictors]
    bars = predictors.bar(names, [100 * (each.f1 or 0.0) for each in probe.predictors], color="#0072B2", hatch="///")
    predictors.bar_label(bars, fmt="%.1f", fontsize=8, padding=2)
    predictors.set_ylabel("F1 of wrong layers, percent")
    heading(predictors, "Predicting mistakes")
    _curve(exits, probe.learned, "learned exit", "#009E73", "-")
    _curve(exits, probe.shuffled, "shuffled exits", "#5F5F5F", "--")
    points = (("dense", probe.dense, "*", "#000000"), ("hash", probe.hash, "o", "#0072B2"))
    for name, point, marker, colour in points:
        exits.plot([point.speedup], [point.accuracy], marker, color=colour, markersize=11, label=name)
    speedup_axis(exits, [point.speedup for point in (*probe.learned, *probe.shuffled, probe.hash, probe.dense)])
    exits.set_xlabel("times fewer operations than the whole backbone")
    exits.set_ylabel("accuracy, percent")
    exits.legend(frameon=False, fontsize=9)
    heading(exits, "What exits are worth")
    return figure


def _curve(axes: Any, points: tuple[Point, ...], label: str, colour: str, line: str) -> None:
    ordered = sorted(points, key=lambda point: point.speedup)
    speedups, accuracies = [point.speedup for point in ordered], [point.accuracy for point in ordered]
    axes.plot(speedups, accuracies, line, color=colour, marker="o", markersize=4, label=label)
