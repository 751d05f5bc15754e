"""Curves of quality against cost: which operating points dev would choose, and what they reach on test."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from statistics import mean, stdev
from typing import Literal

from hashee.data import Recipe
from hashee.data.elue import Point, elue_score, mflops_per_text
from hashee.errors import InputError
from hashee.study.results import OperatingPoint, RunResult

Split = Literal["dev", "test"]
BASELINES = ("dense", "first-layers")
"""Methods whose curve other methods are measured against, as ELUE measures against ElasticBERT."""


@dataclass(frozen=True)
class Variant:
    """Which model it is that a method was run with."""

    method: str
    task: str
    backbone: str
    depth: int
    """Layers that are kept of the backbone."""
    buckets: int
    """Groups of tokens of a table that is not solved for a cost."""
    layers: int
    """Of the backbone."""


@dataclass(frozen=True)
class Reached:
    """Mean over seeds of what a method reaches at an operating point of each seed."""

    quality: float
    """In percent."""
    std: float | None
    """Over seeds, in percent points; None for one seed."""
    seeds: int
    split: Split
    speedup: float
    """Full depth of the backbone / executed."""
    paper_speedup: float
    """Full depth of the backbone / the paper's count."""
    mflops: float
    """Executed, per text, in ELUE's unit."""


def variant_of(result: RunResult) -> Variant:
    """Return what a result is one of several seeds of."""
    depth = int(result.settings.get("depth") or result.layers)
    buckets = int(result.settings.get("num_buckets") or depth)
    return Variant(result.method, result.task, result.backbone, depth, buckets, result.layers)


def by_variant(results: Iterable[RunResult]) -> dict[Variant, list[RunResult]]:
    """Group results that differ in their seeds only, in the order in which they come."""
    found: dict[Variant, list[RunResult]] = {}
    for result in results:
        found.setdefault(variant_of(result), []).append(result)
    return found


def dev_front(curve: Sequence[OperatingPoint]) -> list[OperatingPoint]:
    """Return the points to which dev prefers no point that is as cheap, the slowest first."""
    front: list[OperatingPoint] = []
    for point in sorted(curve, key=lambda point: (-point.speedup, -point.dev)):
        if not front or point.dev > front[-1].dev:
            front.append(point)
    return front[::-1]


def nearest(curve: Sequence[OperatingPoint], speedup: float) -> OperatingPoint:
    """Return the point of the dev front whose executed speed-up is nearest, as a ratio, to the one asked for."""
    return min(dev_front(curve), key=lambda point: abs(math.log(point.speedup / speedup)))


def at_cost(curve: Sequence[OperatingPoint], speedup: float, split: Split = "test") -> float | None:
    """Return a method's quality on a split at an executed speed-up; None if the method is never so fast.

    Between neighbouring points of the dev front it is interpolated, linearly in the logarithm of the speed-up. Where
    less speed is asked for than the slowest point of the front has, that point is within the cost.
    """
    front = dev_front(curve)
    if not front or speedup > front[-1].speedup:
        return None
    if speedup <= front[0].speedup:
        return quality(front[0], split)
    left, right = next(pair for pair in pairwise(front) if speedup <= pair[1].speedup)
    low, high = quality(left, split), quality(right, split)
    if low is None or high is None:
        return None
    share = math.log(speedup / left.speedup) / math.log(right.speedup / left.speedup)
    return low + share * (high - low)


def quality(point: OperatingPoint, split: Split) -> float | None:
    """Return what a point reaches on a split."""
    return point.dev if split == "dev" else point.test


def split_of(results: Iterable[RunResult]) -> Split:
    """Return which split is shown: test, or dev where some result has no test."""
    return "test" if all(point.test is not None for result in results for point in result.curve) else "dev"


def reached(seeds: Sequence[RunResult], speedup: float) -> Reached | None:
    """Return the mean over seeds of the point that is nearest to a speed-up in each; None if nothing was measured."""
    seeds = [result for result in seeds if result.curve]
    if not seeds:
        return None
    split = split_of(seeds)
    return averaged([nearest(result.curve, speedup) for result in seeds], split)


def averaged(points: Sequence[OperatingPoint], split: Split) -> Reached:
    """Return the mean over seeds of one operating point each."""
    values = [100 * (quality(point, split) or 0.0) for point in points]
    return Reached(
        quality=mean(values),
        std=stdev(values) if len(values) > 1 else None,
        seeds=len(values),
        split=split,
        speedup=mean(point.speedup for point in points),
        paper_speedup=mean(point.paper_speedup for point in points),
        mflops=mean(mflops_per_text(point.executed_macs, 1) for point in points),
    )


def mean_curve(seeds: Sequence[RunResult]) -> list[OperatingPoint]:
    """Return the operating points that all seeds have, each as the mean over them."""
    by_knob: dict[tuple[str, float], list[OperatingPoint]] = {}
    for result in seeds:
        for point in result.curve:
            by_knob.setdefault((point.candidate, point.knob), []).append(point)
    return [_mean_point(points) for points in by_knob.values() if len(points) == len(seeds)]


def _mean_point(points: Sequence[OperatingPoint]) -> OperatingPoint:
    tests = [point.test for point in points if point.test is not None]
    means = {
        name: mean(getattr(point, name) for point in points)
        for name in ("dev", "executed_macs", "paper_macs", "speedup", "paper_speedup")
    }
    return replace(points[0], test=mean(tests) if len(tests) == len(points) else None, **means)


def baseline_curve(results: Iterable[RunResult], task: str, backbone: str) -> list[Point]:
    """Return the curve of the models with fewer layers and the dense one, each depth as the mean over seeds.

    (MFLOPs executed per text, quality in percent) for each depth; empty if they were not run.
    """
    chosen = [
        result
        for result in results
        if result.method in BASELINES and (result.task, result.backbone) == (task, backbone) and result.curve
    ]
    split = split_of(chosen)
    by_depth: dict[float, list[OperatingPoint]] = {}
    for result in chosen:
        for point in result.curve:
            by_depth.setdefault(point.knob, []).append(point)
    means = [averaged(points, split) for points in by_depth.values()]
    return sorted((each.mflops, each.quality) for each in means)


def score_above(baseline: Sequence[Point], found: Reached) -> float | None:
    """Return the ELUE score of a point: percent points above the baseline at the same cost; None without one."""
    try:
        return elue_score([(found.mflops, found.quality)], baseline)
    except InputError:
        return None


def notes_on_data(results: Iterable[RunResult]) -> list[str]:
    """Return what a reader must know before results are compared: other data, other passes, data cut short."""
    results = [result for result in results if result.curve]
    notes = []
    for task in dict.fromkeys(result.task for result in results):
        own = [result for result in results if result.task == task]
        if len({result.data.get("fingerprint") for result in own}) > 1:
            notes.append(f"{task}: the runs did not all see the same data")
        passes = sorted({result.passes for result in own})
        if len(passes) > 1:
            notes.append(f"{task}: passes over train differ, {passes[0]:g} to {passes[-1]:g}")
        notes += [
            f"{task}: the runs with {backbone} did not all train by the same recipe (not the same {', '.join(names)})"
            for backbone in dict.fromkeys(result.backbone for result in own)
            if (names := recipe_differences([result for result in own if result.backbone == backbone]))
        ]
        if split_of(own) == "dev":
            notes.append(f"{task}: runs without a labelled test set are shown on dev")
        for note in dict.fromkeys(note for result in own for note in result.data.get("notes", ())):
            notes.append(f"{task}: {note}")
    return notes


def recipe_differences(results: Sequence[RunResult]) -> list[str]:
    """Return the fields of the recipe that runs were not all given alike; passes are told apart from it."""
    names = [field.name for field in fields(Recipe) if field.name != "epochs"]
    return [name for name in names if len({result.settings.get(name) for result in results}) > 1]
