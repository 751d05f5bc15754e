"""Results made by hand, whose tables and figures can be worked out by hand."""

from typing import Any

from hashee.study.results import OperatingPoint, RunResult

FULL_DEPTH = 1e9


def point(speedup: float, dev: float, test: float | None, knob: float = 0.0, **other: Any) -> OperatingPoint:
    """Return an operating point whose costs fit its speed-up; the paper's count is a quarter higher."""
    executed = FULL_DEPTH / speedup
    paper = 1.25 * executed
    return OperatingPoint(knob, dev, test, executed, paper, speedup, FULL_DEPTH / paper, **other)


def result(method: str, *curve: OperatingPoint, task: str = "sst2", seed: int = 0, **other: Any) -> RunResult:
    """Return a run with a 6-layer backbone, unless told otherwise."""
    settled = {"backbone": "minilm", "layers": 6, "metric": "accuracy", "data": {"fingerprint": "same"}} | other
    return RunResult(method=method, task=task, seed=seed, curve=curve, **settled)


def baselines(task: str = "sst2", seed: int = 0, **other: Any) -> list[RunResult]:
    """Return the dense model at 90 and its halves at 80 percent: between them a line in MFLOPs."""
    return [
        result("dense", point(1.0, 0.9, 0.9, knob=6), task=task, seed=seed, **other),
        result("first-layers", point(2.0, 0.8, 0.8, knob=3), task=task, seed=seed, **other),
    ]
