"""`hashee info` tells which kernels run and why, and `hashee kernels build` compiles them, whatever is wrong."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hashee.engine.native import variants
from which_kernels import needs_kernels


def run(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "hashee", *arguments],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        check=False,
    )


def fast_compiler(folder: Path, line: str = 'exec gcc $(echo "$@" | sed s/-O3/-O0/)') -> str:
    path = folder / "compiler"
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)
    return str(path)


@needs_kernels
def test_info_names_kernels_file_threads_and_versions(tmp_path: Path) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path), "CC": fast_compiler(tmp_path), "OMP_NUM_THREADS": "1"}
    built = run("kernels", "build", **environment)
    assert built.returncode == 0 and "compiled in" in built.stdout
    found = json.loads(run("info", "--json", **environment).stdout)
    kernels = found["kernels"]
    assert kernels["in_use"] == kernels["could_run"][0] and not kernels["compiled_now"] and kernels["notes"] == []
    assert Path(kernels["file"]).is_file() and kernels["file"] in built.stdout
    assert found["threads"] == 1 and found["cpu"] and found["instruction_sets"]
    assert {"python", "torch", "transformers", "hashee", "onnxruntime", "openvino"} <= set(found["versions"])
    again = run("kernels", "build", **environment | {"CC": "false"})
    assert again.returncode == 0 and "were there already" in again.stdout
    shown = run("info", **environment).stdout
    assert f"in use: {kernels['in_use']}" in shown and f"file: {kernels['file']}" in shown


@needs_kernels
def test_a_folder_that_cannot_be_used_is_a_note(tmp_path: Path) -> None:
    environment = {"XDG_CACHE_HOME": "/proc/nowhere", "CC": fast_compiler(tmp_path)}
    done = run("info", "--json", **environment)
    kernels = json.loads(done.stdout)["kernels"]
    assert done.returncode == 0 and done.stderr == "" and kernels["file"] is None and kernels["in_use"] != "torch"
    assert "kernels cannot be kept and are compiled in every process" in kernels["notes"][0]


@pytest.mark.parametrize("command", [("info", "--json"), ("kernels", "build")])
def test_a_compiler_that_fails_is_a_note_or_one_line(command: tuple[str, ...], tmp_path: Path) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path), "CC": fast_compiler(tmp_path, "echo out of order >&2; exit 3")}
    done = run(*command, **environment)
    if command[0] == "info":
        kernels = json.loads(done.stdout)["kernels"]
        assert done.returncode == 0 and kernels["in_use"] == "torch" and "out of order" in kernels["notes"][-1]
    else:
        assert done.returncode == 2 and done.stderr.count("\n") == 1 and "out of order" in done.stderr


def test_what_the_environment_asks_for_is_said() -> None:
    kernels = json.loads(run("info", "--json", HASHEE_KERNELS="torch").stdout)["kernels"]
    assert kernels["in_use"] == "torch" and kernels["why"] == "switched off by HASHEE_KERNELS=torch"
    refused = run("info", **{variants.SWITCH: "sse9"})
    assert refused.returncode == 2 and refused.stderr.count("\n") == 1
    assert "HASHEE_KERNELS=sse9 is unknown" in refused.stderr
