"""The ELUE score: how much better a system is than ElasticBERT at the same cost."""

import json
import math
import os
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

from hashee.data.registry import registered
from hashee.data.texts import PathLike
from hashee.errors import InputError

Point: TypeAlias = tuple[float, float]
"""MFLOPs per text, and performance in percent."""
Curve: TypeAlias = Sequence[Point]

# ElasticBERT-BASE with 3, 4, 6 and 12 layers on ELUE's test set, read off the curve on the leaderboard's page
# (github.com/FionaChan01/Efficient-Language-Understanding-Evaluation). One MFLOP is a million additions or
# multiplications, that is half a million multiply-accumulates: with 12 layers, 2 x 2118.2 million MACs for a text
# of SST-2's test set at its real length (24.8 tokens on average), and 1.2 million for the pooler.
ELASTICBERT: dict[str, Curve] = {"sst2": ((1060, 84.1), (1413, 85.7), (2119, 87.0), (4238, 88.6))}
"""ElasticBERT's curves by task."""


def elue_score(points: Iterable[Point], baseline: Curve | PathLike | None = None, task: str = "sst2") -> float:
    """Return by how many percent, on average, a system's points lie above those of a baseline at the same FLOPs.

    points: (MFLOPs per text, performance in percent) of one system at several speeds; see `mflops_per_text`.
    baseline: another curve than ElasticBERT's, or a JSON file of one: [[mflops, performance], ...].
    """
    curve = _sorted_curve(_elasticbert(task) if baseline is None else baseline)
    points = [_checked_point(point) for point in points]
    if not points:
        raise InputError("the ELUE score needs at least one point (MFLOPs per text, performance in percent)")
    _refuse_other_units(points, curve)
    return sum(performance - baseline_at(curve, flops) for flops, performance in points) / len(points)


def baseline_at(curve: Curve, flops: float) -> float:
    """Return a curve's performance at a cost: linear between its points, and on beyond the first and the last."""
    segments = list(pairwise(curve))
    (left, low), (right, high) = next((each for each in segments if flops <= each[1][0]), segments[-1])
    return low + (high - low) * (flops - left) / (right - left)


def mflops_per_text(macs: float, texts: int) -> float:
    """Return a counted cost in ELUE's unit, for example of `count.paper_macs` and `count.texts`."""
    if texts < 1:
        raise InputError(f"the cost of {texts} texts has no mean")
    return 2 * macs / texts / 1e6


def _elasticbert(task: str) -> Curve:
    curve = ELASTICBERT.get(registered(task) or task)
    if curve is None:
        raise InputError(
            f"ElasticBERT's curve is known for {', '.join(ELASTICBERT)} only, not for {task!r}; "
            f"pass baseline=[(mflops, performance), ...] or a JSON file of that"
        )
    return curve


def _sorted_curve(baseline: Curve | PathLike) -> Curve:
    name = "the baseline"
    if isinstance(baseline, str | os.PathLike):
        name = str(baseline)
        try:
            baseline = json.loads(Path(baseline).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(f"cannot read a curve from {name}: {error}") from None
    if not isinstance(baseline, Sequence):
        raise InputError(f"{name} is of type {type(baseline).__name__}; a curve is [[mflops, performance], ...]")
    curve = sorted(_checked_point(point) for point in baseline)
    if len({flops for flops, _ in curve}) < max(len(curve), 2):
        raise InputError(f"{name} has {len(curve)} points; a curve needs two or more, each at another cost")
    return curve


def _checked_point(point: object) -> Point:
    numbers = list(point) if isinstance(point, Sequence) and not isinstance(point, str) else []
    if len(numbers) != 2 or not all(isinstance(number, int | float) and math.isfinite(number) for number in numbers):
        raise InputError(f"{point!r} is not a point (MFLOPs per text, performance in percent)")
    if numbers[0] <= 0:
        raise InputError(f"the point {point!r} costs {numbers[0]} MFLOPs; a cost is above 0")
    return float(numbers[0]), float(numbers[1])


def _refuse_other_units(points: Curve, curve: Curve) -> None:
    """Refuse fractions where percent are meant, and FLOPs or totals where MFLOPs per text are."""
    if max(performance for _, performance in curve) > 1.5 and all(abs(performance) <= 1 for _, performance in points):
        raise InputError(
            f"the performance is given in parts of one ({points[0][1]}), the baseline's in percent; take it times 100"
        )
    most = curve[-1][0]
    if any(flops > 100 * most for flops, _ in points):
        raise InputError(
            f"a cost of {max(points)[0]:,.0f} is over 100 times the baseline's highest, {most:,.0f} MFLOPs per text; "
            f"use mflops_per_text(macs, texts)"
        )
