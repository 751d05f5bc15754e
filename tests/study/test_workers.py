"""Runs side by side, in processes and on a real Ray cluster on this machine: nothing is lost or done twice."""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fitting_data import make_data

from hashee.cli import app
from hashee.errors import HasheeError, InputError
from hashee.study.grid import run_all
from hashee.study.ray_engine import connected, run_on_ray, with_absolute_paths
from hashee.study.results import RunResult, read_results
from hashee.study.run import Experiment
from hashee.study.workers import Group, Outcome, Workers, run_in_processes
from hashee.training.stopping import Stopped, StopRequest, sigterm_raises

TOLD = list[tuple[str, Outcome]]


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of labelled texts, which processes on other machines can read as well."""
    folder, data = tmp_path_factory.mktemp("data") / "tiny", make_data(train=32)
    folder.mkdir()
    for name, examples in (("train", data.train), ("dev", data.dev), ("test", data.test)):
        assert examples is not None and examples.targets is not None
        rows = zip(examples.texts, examples.targets, strict=True)
        lines = [json.dumps({"text": str(text), "label": ("bad", "good")[target]}) for text, target in rows]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A Ray cluster of two cores that the tests share; without ray they are skipped and say so."""
    ray = pytest.importorskip("ray", reason='there is no ray; pip install "hashee[ray]"')
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    terminated = signal.getsignal(signal.SIGTERM)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("HASHEE_DATA", str(tmp_path_factory.mktemp("data")))
        with connected(ray, Workers("ray", jobs=2)):
            assert signal.getsignal(signal.SIGTERM) is terminated, "commands handle SIGTERM as without Ray"
            yield


def named(*methods: str) -> list[Experiment]:
    return [Experiment(method, "none") for method in methods]


def test_a_failed_run_is_reported_and_the_others_go_on(
    cluster: None, task: Path, backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Workers have a working folder of their own, so relative paths must have been made absolute.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").symlink_to(task)
    settings = {"epochs": 0.5, "batch_size": 8}
    wrong = Experiment("dense", "data", str(backbone), seed=1, settings={"epochs": 0.5, "depth": 99})
    right = [Experiment(method, "data", str(backbone), settings=settings) for method in ("dense", "pabee")]
    told: TOLD = []
    report = lambda experiment, outcome: told.append((experiment.name, outcome))  # noqa: E731
    found = run_all([wrong, *right], Path("out"), report, Workers("ray", threads=1))
    outcomes = dict(told)
    assert len(told) == 3 and "99" in str(outcomes["dense on data, tiny, seed 1"])
    assert isinstance(outcomes["dense on data, tiny, seed 1"], HasheeError)
    assert [result.method for result in found] == ["dense", "pabee"], "runs that share a dense model keep their order"
    assert {result.hardware["threads"] for result in found} == {1}
    assert list(read_results(tmp_path / "out")) == found
    assert not list((tmp_path / "out").glob(".runs-on-ray*"))
    # What is there is not run again, whichever engine asks.
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*/*.json")}
    again = run_all(right, Path("out"), lambda *told: None, Workers("ray"))
    assert again == run_all(right, Path("out"), lambda *told: None) == found
    assert {path: path.stat().st_mtime_ns for path in written} == written


def test_a_folder_that_a_node_does_not_see_is_refused(
    cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(group: Group) -> Iterator[Outcome]:
        yield from (RunResult(experiment.method, "none", "minilm", 0) for experiment in group)

    @contextmanager
    def elsewhere(folder: Path) -> Iterator[Path]:
        # As if the node had another folder of the same name, in which the file that it looks for is not.
        yield folder / "never-written"

    monkeypatch.setattr("hashee.study.ray_engine.sign_in", elsewhere)
    told: list[Any] = []
    run_on_ray([named("a", "b")], work, lambda experiment, outcome: told.append(outcome), tmp_path, Workers("ray"))
    assert [type(outcome) for outcome in told] == [InputError, InputError]
    assert f"does not see {tmp_path}; choose an --output that all nodes share" in str(told[0])


def test_variables_reach_the_nodes_and_nothing_is_uploaded(cluster: None, tmp_path: Path) -> None:
    def work(group: Group) -> Iterator[Outcome]:
        import ray

        yield HasheeError(json.dumps(dict(ray.get_runtime_context().runtime_env)))

    told: list[str] = []
    report = lambda experiment, outcome: told.append(str(outcome))  # noqa: E731
    run_on_ray([named("a")], work, report, tmp_path, Workers("ray"))
    environment = json.loads(told[0])
    assert list(environment) == ["env_vars"], "no working folder, no modules"
    assert environment["env_vars"]["HASHEE_DATA"] == os.environ["HASHEE_DATA"]


def test_the_rest_of_a_group_goes_on_when_its_worker_dies(cluster: None, tmp_path: Path) -> None:
    def work(group: Group) -> Iterator[Outcome]:
        for experiment in group:
            if experiment.method == "dies":
                time.sleep(1)  # Ray delivers what was yielded in the background
                os._exit(1)
            if experiment.method == "breaks":
                raise ZeroDivisionError("by zero")
            yield RunResult(experiment.method, "none", "minilm", 0)

    told: TOLD = []
    report = lambda experiment, outcome: told.append((experiment.method, outcome))  # noqa: E731
    run_on_ray([named("a", "dies", "b", "breaks", "c")], work, report, tmp_path, Workers("ray"))
    assert [name for name, _ in told] == ["a", "dies", "b", "breaks", "c"]
    outcomes = dict(told)
    assert [outcomes[name].method for name in "abc"] == list("abc")  # type: ignore[union-attr]
    assert str(outcomes["dies"]).startswith("on Ray, the worker died: ") and "\n" not in str(outcomes["dies"])
    assert str(outcomes["breaks"]) == "on Ray, ZeroDivisionError: by zero"


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


@pytest.mark.parametrize("engine", ["ray", "processes"])
def test_an_interruption_waits_for_checkpoints_and_starts_nothing_more(
    engine: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    def interrupt(experiment: Experiment, outcome: Outcome) -> None:
        signal.raise_signal(signal.SIGTERM)

    groups = [named("short"), named("long", "after"), named("waiting")]
    work = partial(interruptible, folder=tmp_path)
    with sigterm_raises(), pytest.raises(Stopped):
        if engine == "ray":
            request.getfixturevalue("cluster")
            run_on_ray(groups, work, interrupt, tmp_path, Workers("ray", jobs=2))
        else:
            run_in_processes(groups, work, interrupt, jobs=2)
    assert (tmp_path / "checkpoint").exists(), "nobody waited for it"
    time.sleep(0.3)
    traces = {path.name for path in tmp_path.iterdir()}
    assert traces == {"short-started", "long-started", "listening", "checkpoint"}


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


@pytest.mark.parametrize(
    ("address", "told"),
    [("127.0.0.1:1", "no Ray cluster answers at 127.0.0.1:1"), ("ray://here:10001", "not HOST:PORT")],
)
def test_a_cluster_that_is_not_there_is_told_at_once(address: str, told: str, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason='there is no ray; pip install "hashee[ray]"')
    with pytest.raises(InputError, match=told):
        run_on_ray([named("a")], interruptible, print, tmp_path, Workers("ray", address=address))  # type: ignore[arg-type]


def test_names_stay_names_and_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("sst2", "minilm", "own", "texts.txt"):
        (tmp_path / name).mkdir()
    settings = {"unlabelled": "texts.txt", "epochs": 1.0}
    assert with_absolute_paths(Experiment("dense", "sst2", "minilm")) == Experiment("dense", "sst2", "minilm")
    moved = with_absolute_paths(Experiment("dense", "own", "own", settings=settings))
    assert (moved.task, moved.backbone) == (str(tmp_path / "own"), str(tmp_path / "own"))
    assert moved.settings == {"unlabelled": str(tmp_path / "texts.txt"), "epochs": 1.0}
    assert with_absolute_paths(Experiment("dense", "own", "org/model")).backbone == "org/model"
