"""Baselines for tests: they need no model, write down when they run, and fail in chosen ways."""

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from hashee.bench.baselines import Baseline, register
from hashee.bench.batches import Padded
from hashee.bench.protocol import ClockJob


def load(job: ClockJob, fail: str = "", offset: float = 0.0) -> Any:
    """Return a function whose outputs are the sum of each text's ids."""
    if fail == "load":
        raise ValueError("no such weights")
    log = Path(job.artifacts) / "log.txt"
    calls = 0

    def run(batch: Padded) -> Any:
        nonlocal calls
        calls += 1
        if fail == "die" and calls > 2:  # the first batch and the warm-up pass, the clock does not
            os._exit(7)
        if fail == "hang":
            time.sleep(60)
        with log.open("a") as file:
            file.write(f"begin {job.baseline}\n")
            time.sleep(0.01)
            file.write(f"end {job.baseline}\n")
        sums = (batch.input_ids * batch.attention_mask).sum(1, keepdims=True).astype(np.float32)
        return sums + offset

    return run


def prepare(job: ClockJob) -> None:
    """Fail, as an exporter may."""
    raise RuntimeError("cannot export")


HERE = "speed_test_baselines"
LIGHT: dict[str, Any] = {"needs_torch": False, "models": ("test",)}
register(
    Baseline("plain", f"{HERE}:load", **LIGHT),
    Baseline("other order", f"{HERE}:load", order="arrival", **LIGHT),
    Baseline("wrong", f"{HERE}:load", {"offset": 1.0}, **LIGHT),
    Baseline("coarse", f"{HERE}:load", {"offset": 1.0}, dtype="int8", **LIGHT),
    Baseline("fails to load", f"{HERE}:load", {"fail": "load"}, **LIGHT),
    Baseline("dies", f"{HERE}:load", {"fail": "die"}, **LIGHT),
    Baseline("hangs", f"{HERE}:load", {"fail": "hang"}, load_limit=1.0, **LIGHT),
    Baseline("cannot be prepared", f"{HERE}:load", prepare=f"{HERE}:prepare", **LIGHT),
    Baseline("not installed", f"{HERE}:load", requires=("no_such_package",), install="no-such-package", **LIGHT),
)
NAMES = ("plain", "other order", "wrong", "coarse", "fails to load", "dies", "hangs", "cannot be prepared")
