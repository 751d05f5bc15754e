"""Runs that a signal interrupts, in a process of their own: `python interrupted_runs.py ENGINE FOLDER`."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from hashee.study.ray_engine import run_on_ray
from hashee.study.results import RunResult
from hashee.study.run import Experiment
from hashee.study.workers import Group, Outcome, Workers, run_in_processes
from hashee.training.stopping import StopRequest, sigterm_raises


def named(*methods: str) -> list[Experiment]:
    """Return runs that nothing trains."""
    return [Experiment(method, "none") for method in methods]


def interruptible(group: Group, folder: Path) -> Iterator[Outcome]:
    """Leave traces in a folder; the run `long` goes on until it is told to stop, and then writes a checkpoint."""
    for experiment in group:
        (folder / f"{experiment.method}-started").touch()
        if experiment.method == "long":
            stop = StopRequest()
            with stop.listening(alone=True):
                (folder / "listening").touch()
                while not stop.requested:
                    time.sleep(0.01)
                time.sleep(0.3)
                (folder / "checkpoint").touch()
        while not (folder / "listening").exists():
            time.sleep(0.01)
        yield RunResult(experiment.method, "none", "minilm", 0)


def check_interrupted(engine: str, folder: Path) -> None:
    """Interrupt runs when the first is reported, and check what they leave behind."""
    traces = folder / "traces"
    traces.mkdir()
    command = [sys.executable, __file__, engine, str(traces)]
    quick = os.environ | {"RAY_worker_niceness": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=quick) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.terminate()
        _, errors = process.communicate(timeout=120)
    assert line == "short\n", errors
    assert process.returncode == 143, errors
    assert (traces / "checkpoint").exists(), "nobody waited for it"
    time.sleep(0.3)
    assert {path.name for path in traces.iterdir()} == {"short-started", "long-started", "listening", "checkpoint"}


def main(engine: str, folder: Path) -> None:
    """Run two groups at a time and print what is reported."""

    def report(experiment: Experiment, outcome: Outcome) -> None:
        print(experiment.method, flush=True)

    groups = [named("short"), named("long", "after"), named("waiting")]
    work = partial(interruptible, folder=folder)
    with sigterm_raises():
        if engine == "ray":
            run_on_ray(groups, work, report, folder, Workers("ray", jobs=2))
        else:
            run_in_processes(groups, work, report, jobs=2)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
