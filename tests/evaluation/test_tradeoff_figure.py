"""Whatever the range of a trade-off, its figure has ticks, and nothing in it is written over anything else."""

from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest

from hashee.evaluation import TradeoffPoint
from hashee.evaluation.figure import tradeoff_figure
from hashee.evaluation.points import with_front

pytest.importorskip("matplotlib")
RANGES = {
    "1-3": ((1.5, 2, 3), (1.3, 1.6, 2.2)),
    "2-12": ((2, 4, 8, 12), (1.4, 1.7, 2.3, 3.4, 6.5)),
    "1-20": ((3, 5, 10, 20), (1.3, 2.6, 7.8)),
    "1-100": ((2, 5, 10, 30, 100), (1.4, 2.3, 6.5)),
    "hardly faster": ((1.05, 1.1), ()),
    "slower": ((0.3, 0.5, 0.9, 2), ()),
    "far": ((0.1, 10, 1000), ()),
    "very far": ((10, 1e4, 1e9), ()),
}


def make_points(speedups: tuple[float, ...], static: tuple[float, ...]) -> list[TradeoffPoint]:
    points = [TradeoffPoint("dense", "dense", 6, speedup=1.0, dev=0.9, test=0.9, seeds=3, test_std=0.01)]
    for number, kind in enumerate(("importance", "frequency")):
        for rank, speedup in enumerate(speedups):
            quality = 0.9 - 0.03 * rank - 0.012 * number
            reached = speedup * (1 + 0.03 * number)
            points.append(TradeoffPoint("", kind, 6, speedup, reached, 1e6, quality, quality, test_std=0.01, seeds=3))
    for rank, speedup in enumerate(static):
        quality = 0.87 - 0.03 * rank
        points.append(
            TradeoffPoint("", "static", 5 - rank, None, speedup, 1e6, quality, quality, test_std=0.01, seeds=3)
        )
    return with_front(points)


def boxes(texts: Any) -> list[Any]:
    return [(text.get_text(), text.get_window_extent()) for text in texts if text.get_visible() and text.get_text()]


@pytest.mark.parametrize("name", RANGES)
def test_no_text_lies_on_another(name: str) -> None:
    figure = tradeoff_figure(make_points(*RANGES[name]), title="a task", metric="accuracy")
    figure.draw_without_rendering()
    (axes,) = figure.axes
    written = boxes([*axes.get_xticklabels(), *axes.get_yticklabels(), *axes.texts, axes.xaxis.label, axes.yaxis.label])
    assert len([text for text, _ in written if text.endswith("x")]) >= 3, "an axis with fewer ticks says nothing"
    for (one, box), (two, other) in combinations(written, 2):
        assert not box.overlaps(other), f"{one!r} and {two!r}"


@pytest.mark.parametrize("name", RANGES)
def test_ticks_have_room_between_them(name: str) -> None:
    figure = tradeoff_figure(make_points(*RANGES[name]))
    figure.draw_without_rendering()
    (axes,) = figure.axes
    placed = sorted((box for _, box in boxes(axes.get_xticklabels())), key=lambda box: float(box.x0))
    assert min(two.x0 - one.x1 for one, two in pairwise(placed)) >= 4


@pytest.mark.parametrize("name", RANGES)
def test_names_of_series_lie_on_no_line(name: str) -> None:
    figure = tradeoff_figure(make_points(*RANGES[name]), title="a task")
    figure.draw_without_rendering()
    (axes,) = figure.axes
    names = [box for text, box in boxes(axes.texts) if text in ("importance", "frequency", "fewer layers, no exits")]
    assert len(names) >= 2
    for line in axes.lines:
        path = line.get_transform().transform(line.get_xydata())
        for start, end in pairwise(path):
            between = np.linspace(start, end, 500)
            for box in names:
                inside = (between > (box.x0, box.y0)) & (between < (box.x1, box.y1))
                assert not inside.all(axis=1).any()
