"""Runs on a real Ray cluster on this machine: nothing is lost or done twice."""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from interrupted_runs import check_interrupted, interruptible, named

from hashee.errors import HasheeError, InputError
from hashee.study.grid import run_all
from hashee.study.ray_engine import connected, run_on_ray, with_absolute_paths
from hashee.study.results import RunResult, read_results
from hashee.study.run import Experiment
from hashee.study.workers import Group, Outcome, Workers

pytestmark = pytest.mark.ray

TOLD = list[tuple[str, Outcome]]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A Ray cluster of two cores that the tests share; without ray they are skipped and say so."""
    ray = pytest.importorskip("ray", reason='there is no ray; pip install "hashee[ray]"')
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    terminated = signal.getsignal(signal.SIGTERM)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # Ray's workers are nice to whatever else runs, which on a busy machine makes seconds minutes.
        patch.setenv("RAY_worker_niceness", "0")
        patch.setenv("HASHEE_DATA", str(tmp_path_factory.mktemp("data")))
        with connected(ray, Workers("ray", jobs=2)):
            assert signal.getsignal(signal.SIGTERM) is terminated, "commands handle SIGTERM as without Ray"
            yield


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


def test_an_interruption_waits_for_checkpoints_and_starts_nothing_more(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason='there is no ray; pip install "hashee[ray]"')
    check_interrupted("ray", tmp_path)


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
