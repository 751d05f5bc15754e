"""The figure of a trade-off: quality against how many times fewer operations are executed."""

from collections.abc import Iterable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from hashee.data.texts import PathLike
from hashee.errors import InputError
from hashee.evaluation.label_layout import Labels, log_ticks
from hashee.evaluation.points import DENSE, STATIC, TradeoffPoint
from hashee.files import replaced_atomically
from hashee.packages import require

# Okabe and Ito's colours, which those who are colour-blind can tell apart, each with a marker of its own.
_STYLES = {
    "importance": ("#0072B2", "o"),
    "frequency": ("#D55E00", "s"),
    "mi": ("#CC79A7", "^"),
    "clustered": ("#E69F00", "p"),
    "random": ("#56B4E9", "v"),
    STATIC: ("#5F5F5F", "D"),
    DENSE: ("#000000", "*"),
}
_OTHERS = (("#009E73", "P"), ("#8A6D00", "h"), ("#7B3294", "<"))
_NAMES = {STATIC: "fewer layers, no exits", "mi": "mutual information", "random": "at random"}


def draw_tradeoff(points: Iterable[TradeoffPoint], path: PathLike, *, title: str = "", metric: str = "quality") -> Path:
    """Draw points to a `.png` (or `.svg`, `.pdf`) file: one line for each kind of table, labelled where it ends."""
    path = Path(path)
    figure = tradeoff_figure(points, title=title, metric=metric)
    with replaced_atomically(path) as temporary:
        figure.savefig(temporary, dpi=160, format=path.suffix.removeprefix(".") or "png")
    return path


def tradeoff_png(points: Iterable[TradeoffPoint], *, title: str = "", metric: str = "quality") -> bytes:
    """Return the same figure as the bytes of a PNG."""
    buffer = BytesIO()
    tradeoff_figure(points, title=title, metric=metric).savefig(buffer, dpi=160, format="png")
    return buffer.getvalue()


def tradeoff_figure(points: Iterable[TradeoffPoint], *, title: str = "", metric: str = "quality") -> Any:
    """Return the figure as an object of matplotlib."""
    drawn = [point for point in points if point.speedup is not None and point.shown is not None]
    if not drawn:
        raise InputError("there is nothing to draw: no point has both a speed-up and a score")
    figure = require("matplotlib.figure", "train", "drawing").Figure(figsize=(8.5, 5.2), layout="constrained")
    axes: Any = figure.subplots()
    ends = []
    for number, kind in enumerate(dict.fromkeys(point.hash for point in drawn)):
        series = sorted((point for point in drawn if point.hash == kind), key=lambda point: point.speedup or 0.0)
        colour = _draw_series(axes, series, _STYLES.get(kind) or _OTHERS[number % len(_OTHERS)])
        ends.append((series[-1], _NAMES.get(kind, kind), colour))
    _set_axes(axes, drawn, metric)
    if title:
        axes.set_title(_plain(title), loc="left", fontsize=12, fontweight="bold", pad=12, parse_math=False)
    # Last, since labels avoid everything that is drawn.
    _label_ends(axes, ends)
    return figure


def _draw_series(axes: Any, series: Sequence[TradeoffPoint], style: tuple[str, str]) -> str:
    colour, marker = style
    rates, scores = [point.speedup for point in series], [_percent(point) for point in series]
    kind = series[0].hash
    if kind == DENSE:
        axes.axhline(scores[0], color=colour, linewidth=1, linestyle=(0, (4, 4)), alpha=0.5, zorder=1)
    axes.plot(rates, scores, color=colour, linewidth=1.2 if kind == STATIC else 2, alpha=0.9, zorder=2)
    for point, rate, score in zip(series, rates, scores, strict=True):
        # Hollow where dev would choose another model that is as cheap.
        fill = colour if point.on_front or kind == DENSE else "white"
        axes.errorbar(
            rate,
            score,
            yerr=100 * point.shown_std if point.seeds > 1 else None,
            color=colour,
            marker=marker,
            markersize={DENSE: 13, STATIC: 6}.get(kind, 8),
            markerfacecolor=fill,
            markeredgewidth=1.6,
            capsize=4,
            elinewidth=1.4,
            zorder=3,
        )
        if kind == STATIC:
            axes.annotate(
                str(point.layers),
                (rate, score),
                (-7, -3),
                textcoords="offset points",
                ha="right",
                va="top",
                color=colour,
                size=9,
            )
    return colour


def _set_axes(axes: Any, drawn: Sequence[TradeoffPoint], metric: str) -> None:
    rates = [point.speedup or 1.0 for point in drawn]
    least, most = min(1.0, *rates), max(1.2, *rates)
    axes.set_xscale("log")
    # Room on the right for the labels.
    low, high = least / (most / least) ** 0.03, most * (most / least) ** 0.32
    axes.set_xlim(low, high)
    ticks = log_ticks(least, most, high / low)
    axes.set_xticks(ticks, [f"{tick:g}x" for tick in ticks])
    axes.minorticks_off()
    axes.margins(y=0.14)
    axes.set_xlabel("times fewer multiply-accumulates executed than by the dense model")
    split = "test" if all(point.test is not None for point in drawn) else "dev"
    axes.set_ylabel(_plain(f"{metric} on {split}, %"), parse_math=False)
    axes.grid(True, axis="y", color="#000000", alpha=0.1)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    notes = ["filled: no model as cheap is better on dev"]
    if any(point.hash == STATIC for point in drawn):
        notes.append("grey numbers: layers")
    if any(point.seeds > 1 for point in drawn):
        notes.append(f"bars: standard deviation over {max(point.seeds for point in drawn)} seeds")
    axes.text(1, -0.17, ";  ".join(notes), transform=axes.transAxes, ha="right", fontsize=8, color="#555555")


def _label_ends(axes: Any, ends: Sequence[tuple[TradeoffPoint, str, str]]) -> None:
    """Write the name of each series beside its last point."""
    labels = Labels(axes)
    for point, name, colour in sorted(ends, key=lambda end: -_percent(end[0])):
        # The dashed line of the dense model would run through its name.
        lift = 9 if point.hash == DENSE else 0
        position = (point.speedup or 1.0, _percent(point))
        labels.write(_plain(name), position, lift, color=colour, fontsize=10, fontweight="bold")


def _plain(text: str) -> str:
    """Return a text that fonts can draw: control characters have no glyph."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)


def _percent(point: TradeoffPoint) -> float:
    return 100 * (point.shown or 0.0)
