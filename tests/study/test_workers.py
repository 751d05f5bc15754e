"""Runs side by side in processes: nothing is lost or done twice."""

import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from click.testing import CliRunner
from interrupted_runs import check_interrupted, named

from hashee.cli import app
from hashee.errors import InputError
from hashee.study.results import RunResult
from hashee.study.run import Experiment
from hashee.study.workers import Group, Outcome, run_in_processes

TOLD = list[tuple[str, Outcome]]


def waiting_to_be_seen(group: Group, folder: Path) -> Iterator[Outcome]:
    """Run on only once the outcome before has been reported; the run `dies` takes its process along."""
    for experiment in group:
        if experiment.method == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        yield RunResult(experiment.method, "none", "minilm", 0)
        deadline = time.monotonic() + 20
        while not (folder / experiment.method).exists():
            assert time.monotonic() < deadline, "nobody was told"
            time.sleep(0.01)


def test_outcomes_are_told_as_they_come_and_a_process_that_dies_fails_one_run(tmp_path: Path) -> None:
    told: TOLD = []

    def report(experiment: Experiment, outcome: Outcome) -> None:
        told.append((experiment.method, outcome))
        (tmp_path / experiment.method).touch()

    run_in_processes([named("a", "b", "dies", "c")], partial(waiting_to_be_seen, folder=tmp_path), report, jobs=2)
    assert [name for name, _ in told] == ["a", "b", "dies", "c"]
    outcomes = dict(told)
    assert [outcomes[name].method for name in "abc"] == list("abc")  # type: ignore[union-attr]
    assert "its process died (killed by SIGKILL)" in str(outcomes["dies"])


def test_an_interruption_waits_for_checkpoints_and_starts_nothing_more(tmp_path: Path) -> None:
    check_interrupted("processes", tmp_path)


def test_engines_that_cannot_be_are_refused(task: Path, backbone: Path, tmp_path: Path) -> None:
    config = tmp_path / "runs.toml"
    config.write_text(f'[[runs]]\ntasks = ["{task}"]\nmethods = ["dense"]\nbackbones = ["{backbone}"]\n')
    for options, remedy in (
        (("--engine", "magic"), "unknown engine 'magic'; choose from processes, ray"),
        (("--address", "auto"), "add --engine ray"),
        (("--gpus", "1"), "add --engine ray"),
    ):
        error = CliRunner().invoke(app, ["study", "run-all", "--config", str(config), *options]).exception
        assert isinstance(error, InputError) and remedy in str(error)
