"""How methods look in all figures: colours, markers and lines that can be told apart in grey as well."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hashee.evaluation.label_layout import log_ticks
from hashee.files import replaced_atomically
from hashee.packages import require

DPI = 160


@dataclass(frozen=True)
class Look:
    """Of one method's line."""

    label: str
    colour: str
    marker: str
    line: Any = "-"
    ours: bool = False
    """Drawn thick and in front."""
    filled: bool = False
    """Whether the marker is filled, although not ours."""
    size: float = 5.5
    """Of the marker, where it is not ours."""

    def options(self) -> dict[str, Any]:
        """Return what matplotlib's `plot` and `errorbar` take."""
        return {
            "label": self.label,
            "color": self.colour,
            "marker": self.marker,
            "linestyle": self.line,
            "linewidth": 2.4 if self.ours else 1.1,
            "markersize": 7.5 if self.ours else self.size,
            "markerfacecolor": self.colour if self.ours or self.filled else "white",
            "zorder": 4 if self.ours else 3,
        }


_DASHED, _DOTTED, _MIXED = (0, (5, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5))
# Okabe and Ito's colours, which those who are colour-blind can tell apart; filled markers are tables, thick lines ours.
LOOKS = {
    "transformers": Look("transformers, padded", "#5F5F5F", "o", _DASHED),
    "dense": Look("dense", "#000000", "*", size=13),
    "first-layers": Look("first layers", "#000000", "D", _DASHED),
    "distilbert": Look("DistilBERT", "#5F5F5F", "s", _DOTTED),
    "tinybert": Look("TinyBERT", "#5F5F5F", "^", _DOTTED),
    "head-prune": Look("HeadPrune", "#5F5F5F", "X", _DOTTED),
    "theseus": Look("BERT-of-Theseus", "#5F5F5F", "p", _DOTTED),
    "deebert": Look("DeeBERT", "#CC79A7", "v", _DASHED),
    "fastbert": Look("FastBERT", "#CC79A7", "<", "-"),
    "pabee": Look("PABEE", "#009E73", ">", _DASHED),
    "berxit": Look("BERxiT", "#009E73", "h", "-"),
    "cascadebert": Look("CascadeBERT", "#8A6D00", "P", _MIXED),
    "hash-rand-incons": Look("hash, random, inconsistent", "#56B4E9", "<", _DOTTED, filled=True),
    "hash-rand-cons": Look("hash, random", "#56B4E9", ">", "-", filled=True),
    "hash-clustered": Look("hash, clustered", "#E69F00", "p", "-", filled=True),
    "hash-mi": Look("hash, mutual information", "#E69F00", "^", _DASHED, filled=True),
    "hash-frequency": Look("hash, frequency (HashEE)", "#D55E00", "s", "-", ours=True),
    "hash-frequency-solved": Look("hash, frequency, solved", "#D55E00", "D", _DASHED, ours=True),
    "hash-importance-1": Look("hash, importance, from layer 1", "#0072B2", "v", _DASHED, ours=True),
    "hash-importance": Look("hash, importance", "#0072B2", "o", "-", ours=True),
    "hash-depth": Look("hash, importance, fewer layers", "#0072B2", "D", "-", ours=True),
    "hash-depth-x-exit": Look("hash x exit, fewer layers", "#7B3294", "X", "-", ours=True),
    "hash-x-exit": Look("hash x exit", "#7B3294", "P", "-", ours=True),
}
_OTHERS = (("#8A6D00", "8"), ("#332288", "d"), ("#117733", "H"), ("#882255", ">"))


def look_of(method: str, number: int = 0) -> Look:
    """Return a method's look; those that are not known take turns in spare ones, by number."""
    colour, marker = _OTHERS[number % len(_OTHERS)]
    return LOOKS.get(method) or Look(method, colour, marker, _MIXED)


def in_order(methods: Iterable[str]) -> list[str]:
    """Return methods in the order of the looks, unknown ones last."""
    known = list(LOOKS)
    return sorted(set(methods), key=lambda method: (known.index(method) if method in known else len(known), method))


def new_figure(width: float, height: float, columns: int = 1) -> tuple[Any, list[Any]]:
    """Return an empty figure and its axes side by side, in the project's style."""
    figure = require("matplotlib.figure", "train", "drawing").Figure(figsize=(width, height), layout="constrained")
    axes = list(figure.subplots(1, columns, squeeze=False)[0])
    for each in axes:
        each.set_axisbelow(True)
        each.grid(True, axis="y", color="#000000", alpha=0.1)
        for side in ("top", "right"):
            each.spines[side].set_visible(False)
    return figure, axes


def speedup_axis(axes: Any, speedups: Iterable[float]) -> None:
    """Make the horizontal axis logarithmic, with ticks such as 2x that stand apart."""
    found = list(speedups)
    low, high = min(1.0, *found), max(1.2, *found)
    axes.set_xscale("log")
    room = (high / low) ** 0.05
    axes.set_xlim(low / room, high * room)
    ticks = log_ticks(low, high, high / low * room**2)
    axes.set_xticks(ticks, [f"{tick:g}x" for tick in ticks])
    axes.minorticks_off()


def heading(axes: Any, text: str) -> None:
    """Write a title over the left end of some axes; nothing in it is read as mathematics."""
    plain = "".join(letter if letter.isprintable() else "\ufffd" for letter in text)
    axes.set_title(plain, loc="left", fontsize=12, fontweight="bold", pad=10, parse_math=False)


def note(figure: Any, text: str) -> None:
    """Write a remark below everything."""
    figure.supxlabel(text, fontsize=8, color="#555555", x=0.99, ha="right")


def legend_beside(figure: Any, axes: Any) -> None:
    """Put the names of all lines to the right of the figure, where they cover nothing."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", frameon=False, fontsize=9, handlelength=3.2)


def save(figure: Any, path: Path) -> Path:
    """Write a figure as `.png`, `.svg` or `.pdf`, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replaced_atomically(path) as unfinished:
        figure.savefig(unfinished, dpi=DPI, format=path.suffix.removeprefix(".") or "png")
    return path
