"""How many threads are taken, and how they wait."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import hashee.cost.threads
from hashee.cost.threads import torch_threads, usable_cores


@pytest.fixture
def many_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(64)), raising=False)


def cgroups(folder: Path, lines: str, **files: str) -> tuple[Path, Path]:
    """Write control groups (a/b/cpu.max as a__b__cpu_max) and what a process knows of its own."""
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("cpu_", "cpu.", 1)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    own = folder / "own"
    own.write_text(lines)
    return folder, own


@pytest.mark.usefixtures("many_cores")
def test_cores_are_those_that_the_container_grants(tmp_path: Path) -> None:
    assert usable_cores(*cgroups(tmp_path / "none", "0::/\n")) == 64
    assert usable_cores(*cgroups(tmp_path / "max", "0::/a\n", a__cpu_max="max 100000\n")) == 64
    assert usable_cores(*cgroups(tmp_path / "two", "0::/a\n", a__cpu_max="250000 100000\n")) == 2
    assert usable_cores(*cgroups(tmp_path / "half", "0::/a\n", a__cpu_max="50000 100000\n")) == 1
    above = cgroups(tmp_path / "above", "0::/a/b\n", a__cpu_max="300000 100000\n", a__b__cpu_max="max 100000\n")
    assert usable_cores(*above) == 3
    # The path is the host's, of which the container sees the top.
    assert usable_cores(*cgroups(tmp_path / "top", "0::/host/path\n", cpu_max="400000 100000\n")) == 4
    assert usable_cores(tmp_path / "nowhere", tmp_path / "nothing") == 64
    assert usable_cores(*cgroups(tmp_path / "odd", "0::/a\n", a__cpu_max="what\n")) == 64


@pytest.mark.usefixtures("many_cores")
def test_cores_under_the_first_version_of_control_groups(tmp_path: Path) -> None:
    lines = "5:memory:/m\n4:cpu,cpuacct:/a\n0::/\n"
    folder, own = cgroups(tmp_path, lines)
    group = folder / "cpu,cpuacct" / "a"
    group.mkdir(parents=True)
    for quota, cores in (("-1", 64), ("600000", 6)):
        (group / "cpu.cfs_quota_us").write_text(f"{quota}\n")
        (group / "cpu.cfs_period_us").write_text("100000\n")
        assert usable_cores(folder, own) == cores


def test_torch_gets_the_threads_that_were_asked_for_and_its_own_back(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    monkeypatch.setattr(hashee.cost.threads, "usable_cores", lambda: 2)
    try:
        for own, variable, count, expected in (
            (5, None, 3, 3),
            (5, None, None, 2),  # the cores that there are
            (1, None, None, 1),  # what the caller has set
            (5, "5", None, 5),  # what the user has set
        ):
            monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
            if variable is not None:
                monkeypatch.setenv("OMP_NUM_THREADS", variable)
            torch.set_num_threads(own)
            with torch_threads(count):
                assert torch.get_num_threads() == expected
            assert torch.get_num_threads() == own
    finally:
        torch.set_num_threads(before)


_WAITING = """
import importlib.util, json, os, sys
spec = importlib.util.spec_from_file_location("threads", sys.argv[1])
threads = importlib.util.module_from_spec(spec)
spec.loader.exec_module(threads)
if len(sys.argv) > 2:
    import torch
print(json.dumps([threads.wait_passively(), os.environ.get("OMP_WAIT_POLICY")]))
"""


@pytest.mark.parametrize(
    ("environment", "loaded", "expected"),
    [
        ({}, False, [True, "PASSIVE"]),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, False, [False, "ACTIVE"]),
        ({"GOMP_SPINCOUNT": "1000"}, False, [False, None]),
        ({}, True, [False, None]),  # too late: nothing would come of it
    ],
)
def test_idle_threads_sleep_unless_the_environment_says_how_they_wait(
    environment: dict[str, str], loaded: bool, expected: list[object]
) -> None:
    spec = importlib.util.find_spec("hashee.cost.threads")
    assert spec is not None and spec.origin is not None
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "KMP_"))}
    command = [sys.executable, "-c", _WAITING, spec.origin, *(["torch"] if loaded else [])]
    done = subprocess.run(command, env=plain | environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == expected


def test_commands_that_train_let_idle_threads_sleep(tmp_path: Path) -> None:
    # OpenMP reads this once, when torch is loaded, so it must be said before.
    script = """
import os, sys
import hashee.cli
sys.argv = ["hashee", "fit", "--task", "missing.csv", "--output", sys.argv[1]]
assert "torch" not in sys.modules
try:
    hashee.cli.main()
except SystemExit as stopped:
    print(stopped.code, os.environ.get("OMP_WAIT_POLICY"), "torch" in sys.modules)
"""
    waiting = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
    environment = {name: value for name, value in os.environ.items() if name not in waiting}
    command = [sys.executable, "-c", script, str(tmp_path / "out")]
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert run.stdout.split() == ["2", "PASSIVE", "True"]
