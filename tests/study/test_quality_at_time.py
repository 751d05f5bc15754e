"""Curves compared on the clock, on times whose table can be worked out by hand."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from made_up_results import point, result

from hashee.study.clocks import ClockRow, Clocks, read_clocks
from hashee.study.options import ReportOptions
from hashee.study.results import OperatingPoint
from hashee.study.tables import TABLES


def timed(method: str, batch: int, seconds: float, of: OperatingPoint) -> ClockRow:
    return ClockRow(method, "SNLI", batch, (seconds,), of.speedup, of.test, of.knob)


def test_methods_at_the_same_measured_time(tmp_path: Path) -> None:
    full = point(1.0, 0.9, 0.9, knob=6)
    # Counted 2, 4 and 8 times cheaper; by the clock only 1.5, 3 and 6 times.
    cheap = [point(2.0, 0.9, 0.8, knob=1), point(4.0, 0.8, 0.6, knob=2), point(8.0, 0.7, 0.5, knob=3)]
    untimed = point(16.0, 0.6, 0.4, knob=4)
    found = [
        result("dense", full, task="snli"),
        result("pabee", *cheap, untimed, task="snli"),
        result("pabee", *(replace(each, test=0.1) for each in cheap), task="snli", seed=1),
    ]
    times = [timed("pabee", 8, 1.2 / factor, each) for each, factor in zip(cheap, (1.5, 3, 6), strict=True)]
    # Alone in a batch, the fastest point by count is no faster by the clock than one that is better on dev.
    times += [timed("pabee", 1, 2.0 / factor, each) for each, factor in zip(cheap, (1.5, 3, 2.9), strict=True)]
    dense = [timed("dense", 8, 1.2, full), timed("dense", 1, 2.0, full)]
    path = tmp_path / "clocks.json"
    Clocks((*dense, *times), {"threads": 1}, {"backbone": "minilm", "seed": 0}).write(path)
    made = TABLES["quality-at-time"](found, ReportOptions(clocks=path, task="SNLI")).to_dict()
    by_batch = {row["texts, backbone"].split()[-1]: row for row in made["rows"] if row["method"] == "pabee"}
    quality = {speedup: by_batch["8"][speedup]["quality"] for speedup in ("1.5x", "3x", "6x")}
    assert quality == {"1.5x": pytest.approx(80), "3x": pytest.approx(60), "6x": pytest.approx(50)}
    between = 80 - 20 * math.log(2 / 1.5) / math.log(3 / 1.5)
    assert by_batch["8"]["2x"]["quality"] == pytest.approx(between)
    assert by_batch["1"]["3x"]["quality"] == pytest.approx(60) and by_batch["1"]["4x"] == "-"
    assert by_batch["8"]["1.5x"]["seeds"] == 1, "one seed was timed"
    assert not TABLES["quality-at-time"](found, ReportOptions(clocks=path, task="imdb")).rows
    # A run that was made anew has other operating points than those that were timed.
    newer = [found[0], result("pabee", *(replace(each, test=0.7) for each in cheap), task="snli")]
    again = TABLES["quality-at-time"](newer, ReportOptions(clocks=path))
    assert {row[0] for row in again.rows} == {"dense"}
    assert "pabee on SNLI: its results are newer than its times; measure again" in again.notes


def test_clocks_of_one_operating_point_for_each_method_are_still_read(tmp_path: Path) -> None:
    rows = [
        {"method": method, "texts": "SNLI", "batch": 8, "seconds_per_text": [seconds], "speedup": 3.0, "quality": 0.8}
        | {"knob": 1.0}
        for method, seconds in (("dense", 0.2), ("pabee", 0.1))
    ]
    path = tmp_path / "clocks.json"
    path.write_text(json.dumps({"hardware": {}, "protocol": {"asked_speedup": 3.0}, "rows": rows}))
    clocks = read_clocks(path)
    assert clocks.asked_speedup == 3.0 and list(clocks.of("SNLI")) == ["dense", "pabee"]
    found = [result(method, point(3.0, 0.8, 0.8, knob=1.0), task="snli") for method in ("dense", "pabee")]
    made = TABLES["quality-at-time"](found, ReportOptions(clocks=path)).to_dict()
    assert made["rows"][1]["2x"]["quality"] == pytest.approx(80) and made["rows"][0]["2x"] == "-"
