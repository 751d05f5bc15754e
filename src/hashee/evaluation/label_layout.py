"""The layout of ticks and labels in a figure, so that none of them covers anything else."""

import math
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

_TICKS = (
    tuple(round(1 + number / 100, 2) for number in range(900)),
    tuple(round(1 + number / 50, 2) for number in range(450)),
    tuple(round(1 + number / 20, 2) for number in range(180)),
    tuple(round(1 + number / 10, 1) for number in range(90)),
    (1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9),
    (1, 1.5, 2, 3, 4, 5, 6, 8),
    (1, 1.5, 2, 3, 4, 6),
    (1, 2, 3, 5),
    (1, 2, 5),
    (1, 3),
    (1,),
)
"""Numbers of a decade at which there may be a tick, from dense to sparse."""
_TICK_GAP = 0.065
"""Least distance of two ticks, as a part of the axis: a label such as 1.05x and some room."""
_ROOM = 3.0
"""Pixels around a label that stay empty."""
_HEIGHTS = (0, 12, -12, 18, -18, 24, -24, 30, -30, 40, -40, 52, -52, 66, -66)
_SHIFTS = {10: 0, -10: 15, 22: 16, 36: 30}
"""Points to the right of a point (negative: to the left) where its label may begin, and how much less each is liked."""


def log_ticks(low: float, high: float, span: float) -> list[float]:
    """Return round numbers from low to high that stand far enough apart on a logarithmic axis.

    span: ratio of the ends of the axis.
    """
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    chosen: list[float] = []
    for mantissas in _TICKS:
        ticks = [float(f"{number}e{decade}") for decade in decades for number in mantissas]
        chosen = [tick for tick in ticks if low * 0.999 <= tick <= high * 1.001]
        gaps = [math.log(two / one) / math.log(span) for one, two in pairwise(chosen)]
        if all(gap >= _TICK_GAP for gap in gaps):
            return chosen
    # Only powers of ten are left, and they are too many.
    step = math.ceil(_TICK_GAP * math.log10(span))
    return chosen[::step]


class Labels:
    """Writes labels beside points of some axes, each where it covers no line, no bar and no other label."""

    def __init__(self, axes: Any) -> None:
        self.axes = axes
        axes.figure.draw_without_rendering()
        self.frame = axes.get_window_extent()
        self.lines = _pixels_of_lines(axes)
        self.taken = [text.get_window_extent() for text in axes.texts]

    def write(self, text: str, point: tuple[float, float], lift: int = 0, **style: Any) -> None:
        """Write a label beside a point, or if there is no room, as near to it as can be; lift: points above it."""
        label = self.axes.annotate(
            text, point, (10, lift), textcoords="offset points", va="center", parse_math=False, **style
        )
        # Labels are put into the room that the layout has left; they must not change it.
        label.set_in_layout(False)
        offsets = [(shift, lift + height) for height in _HEIGHTS for shift in _SHIFTS]
        offsets.sort(key=lambda offset: abs(offset[1] - lift) + _SHIFTS[offset[0]])
        costs = [self._cost(label, *offset) for offset in offsets]
        best = offsets[int(np.argmin(costs))]
        self._put(label, *best)
        self.taken.append(label.get_window_extent())

    def _put(self, label: Any, shift: int, height: int) -> None:
        label.set_horizontalalignment("left" if shift > 0 else "right")
        label.xyann = (shift, height)

    def _cost(self, label: Any, shift: int, height: int) -> float:
        """Return how much a label would cover at an offset, labels and the frame counting most."""
        self._put(label, shift, height)
        box = label.get_window_extent().padded(_ROOM)
        x, y = self.lines[:, 0], self.lines[:, 1]
        covered = ((x > box.x0) & (x < box.x1) & (y > box.y0) & (y < box.y1)).sum()
        beyond = box.x0 < self.frame.x0 or box.x1 > self.frame.x1 or box.y0 < self.frame.y0 or box.y1 > self.frame.y1
        return float(covered + 1000 * sum(box.overlaps(other) for other in self.taken) + 3000 * beyond)


def _pixels_of_lines(axes: Any) -> NDArray[Any]:
    """Return points on every line, bar and marker of some axes, a pixel or two apart. (points, 2)"""
    found: list[NDArray[Any]] = [np.empty((0, 2))]
    paths = [line.get_transform().transform(line.get_xydata()) for line in axes.lines]
    paths += [bars.get_transform().transform(segment) for bars in axes.collections for segment in bars.get_segments()]
    for path in paths:
        found.append(path)
        found += [_between(start, end) for start, end in pairwise(path)]
    return np.concatenate(found)


def _between(start: NDArray[Any], end: NDArray[Any]) -> NDArray[Any]:
    steps = max(int(np.abs(end - start).max()), 2)
    return np.linspace(start, end, steps)
