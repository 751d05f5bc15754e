"""A benchmark says from its start what runs, how long it has run and how long it will."""

import io
import os
import re
import select
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from test_speed_run import tiny  # noqa: F401  # a fixture

from hashee.bench import progress
from hashee.bench.progress import Clock, minutes, shown_progress
from hashee.bench.protocol import Benchmark
from hashee.bench.run import run_benchmark
from hashee.cli.speed import run

SCRIPT = """
from pathlib import Path
import sys
from rich.console import Console
from hashee.cli.speed import run
from hashee.bench.protocol import Benchmark
from hashee.bench import workloads
import time

def slow(folder):
    time.sleep(60)

workloads.MODELS["test"] = slow
print("ready", file=sys.stderr, flush=True)
run(Benchmark(model="test", baselines=("hashee",)), None, None, Console())
"""


def test_lines_name_baselines_rounds_and_times(
    tiny: None,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    light = ("plain", "coarse")
    benchmark = Benchmark(workload="tiny", model="test", batch_sizes=(3, 6), baselines=light, rounds=2)
    with shown_progress(Console(file=io.StringIO())) as report:
        list(run_benchmark(benchmark, tmp_path, report, modules=("speed_test_baselines",)))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "0:00: starting"
    assert any(re.match(r"\d+:\d\d, about \d+:\d\d left: batch 6, round 2 of 2: \w", line) for line in lines), lines
    for name in light:
        for what in ("loading", "warming up", "round 1 of 2:", "round 2 of 2:"):
            for size in (3, 6):
                assert any(f": batch {size}, {what} {name}" in line for line in lines), (size, what, name)


def test_results_are_alone_on_their_stream(tiny: None, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    results = io.StringIO()
    benchmark = Benchmark(workload="tiny", model="test", batch_sizes=(3,), baselines=("transformers",), rounds=1)
    run(benchmark, None, None, Console(file=results, width=80))
    assert "starting" not in results.getvalue() and "texts/s" in results.getvalue()
    assert "0:00: starting" in capsys.readouterr().err


def test_a_terminal_shows_the_baseline_and_the_time(tiny: None) -> None:  # noqa: F811
    screen = io.StringIO()
    benchmark = Benchmark(workload="tiny", model="test", batch_sizes=(3,), baselines=("transformers",), rounds=1)
    run(benchmark, None, None, Console(file=screen, width=80, force_terminal=True))
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    assert "starting" in shown and "loading transformers" in shown and "left" in shown


def test_the_first_line_does_not_wait_for_the_first_step() -> None:
    process = subprocess.Popen([sys.executable, "-c", SCRIPT], stderr=subprocess.PIPE, env=os.environ, bufsize=0)
    assert process.stderr is not None
    try:
        assert process.stderr.readline() == b"ready\n"
        readable, _, _ = select.select([process.stderr], [], [], 20)
        assert readable, "nothing was said while the model was being saved"
        assert process.stderr.readline() == b"0:00: starting\n"
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_time_left_follows_from_steps_and_budget() -> None:
    times = [100.0]
    clock = Clock(now=lambda: times[0])
    assert clock.left(0, 10) is None and clock.said(0, 10) == "0:00"
    times[0] = 160.0
    assert clock.left(4, 10) == 90.0 and clock.said(4, 10) == "1:00, about 1:30 left"
    assert clock.left(10, 10) == 0.0
    hurried = Clock(budget=80.0, now=lambda: times[0])
    times[0] = 220.0
    assert hurried.left(1, 10) == 20.0, "no more than the budget allows"


def test_times_are_read_as_clocks_show_them() -> None:
    assert [minutes(seconds) for seconds in (0, 9.6, 65, 3599, 3725)] == ["0:00", "0:10", "1:05", "59:59", "1:02:05"]


def test_lines_are_few(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with (tmp_path / "results").open("w") as file, shown_progress(Console(file=file)) as report:
        for done in range(1, 1000):
            report(f"step {done}", done, 1000)
    assert len(capsys.readouterr().err.splitlines()) < 20
