"""A run that was interrupted, killed or stopped half-way ends as if nothing had happened."""

import json
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from fitting_data import make_data
from safetensors.torch import load_file
from typer.testing import CliRunner

from hashee.cli.fit import fit as command
from hashee.errors import InputError
from hashee.training import fit
from hashee.training.entry import complete_settings
from hashee.training.objective import TargetLoss
from hashee.training.stage import last_complete
from hashee.training.stopping import Stopped, sigterm_raises

EXAMPLES = 48
OPTIONS: dict[str, Any] = {"hash": "frequency", "epochs": 3, "quiet": True}


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def assert_equal(folder: Path, other: Path) -> None:
    """Both runs came to the very same weights and metrics, dropout included."""
    mine, theirs = weights(folder), weights(other)
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    runs = [json.loads((path / "run.json").read_text()) for path in (folder, other)]
    assert runs[0]["metrics"] == runs[1]["metrics"]
    assert runs[0]["candidates"][0]["best_step"] == runs[1]["candidates"][0]["best_step"]
    assert [row for row in runs[0]["history"] if "score" in row] == [
        row for row in runs[1]["history"] if "score" in row
    ]


@pytest.fixture(scope="module")
def undisturbed(backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a run comes to when it is left alone."""
    output = tmp_path_factory.mktemp("undisturbed") / "out"
    fit(task=make_data(train=EXAMPLES), backbone=str(backbone), output=output, **OPTIONS)
    return output


def test_a_killed_run_goes_on(undisturbed: Path, backbone: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    settings = OPTIONS | {"output": str(output), "backbone": str(backbone)}
    script = str(Path(__file__).with_name("run_fit.py"))
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, script, str(EXAMPLES), json.dumps(settings)], stdout=log, stderr=log
        )
        # The hashed model has been trained for an epoch, and has two to go.
        checkpoints = output / "work" / "frequency" / "checkpoints"
        until = time.monotonic() + 300
        while not any(checkpoints.glob("checkpoint-*/trainer_state.json")) and time.monotonic() < until:
            assert process.poll() is None, (tmp_path / "log").read_text()
            time.sleep(0.01)
        process.kill()
        process.wait()
    assert not (output / "run.json").exists(), "it was killed too late to tell anything"
    assert (output / "dense" / "stage.json").exists()
    # As if the kill had come in the middle of writing a checkpoint.
    half = checkpoints / "checkpoint-99"
    half.mkdir()
    (half / "trainer_state.json").write_text('{"global_step": 9')
    fit(task=make_data(train=EXAMPLES), output=output, resume=True, quiet=True)
    assert_equal(output, undisturbed)


@pytest.fixture(scope="module", params=[None, 4], ids=["by epochs", "by steps"])
def cadence(request: pytest.FixtureRequest, backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Settings of a run that looks at dev every epoch of 6 steps, or every 4 steps, and where it is finished."""
    options = {"eval_steps": request.param, "warm_start": False, "backbone": str(backbone), "epochs": 2}
    output = tmp_path_factory.mktemp("whole") / "out"
    fit(task=make_data(train=EXAMPLES), output=output, **(OPTIONS | options))
    return OPTIONS | options, output


@pytest.mark.parametrize("stop_at", [3, 6, 12], ids=["within an epoch", "at its end", "at the very end"])
def test_control_c_finishes_the_step_and_loses_nothing(
    cadence: Any, stop_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, whole = cadence
    loss, calls = TargetLoss.__call__, []

    def interrupted(*arguments: Any) -> torch.Tensor:
        calls.append(1)
        if len(calls) == stop_at:
            signal.raise_signal(signal.SIGINT)
        return loss(*arguments)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(TargetLoss, "__call__", interrupted)
        fit(task=make_data(train=EXAMPLES), output=tmp_path / "out", **options)
    assert len(calls) == stop_at, "no step after the interruption"
    last = last_complete(tmp_path / "out" / "work" / "frequency" / "checkpoints")
    assert last is not None
    assert last.name == f"checkpoint-{stop_at}"
    fit(task=make_data(train=EXAMPLES), output=tmp_path / "out", resume=True, quiet=True)
    assert_equal(tmp_path / "out", whole)


def test_patience_that_had_run_out_stays_so(backbone: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = OPTIONS | {"eval_steps": 4, "patience": 1, "epochs": 20, "warm_start": False}
    settings |= {"task": make_data(train=EXAMPLES), "backbone": str(backbone), "keep_checkpoints": True}
    fit(output=tmp_path / "whole", **settings)
    # As if it had been killed after the last checkpoint, before anything was made of it.
    shutil.copytree(tmp_path / "whole" / "work", tmp_path / "out" / "work")
    (tmp_path / "out" / "work" / "frequency" / "stage.json").unlink()
    fit(output=tmp_path / "out", resume=True, **settings)
    assert_equal(tmp_path / "out", tmp_path / "whole")


def test_the_command_says_how_to_go_on(backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_rows(tmp_path / "train.jsonl")
    app = typer.Typer()
    app.command()(command)
    options = ["--task", str(tmp_path / "train.jsonl"), "--output", str(tmp_path / "out dir"), "--hash", "random"]
    options += ["--backbone", str(backbone), "--no-warm-start", "--epochs", "1", "--learning-rate", "0.01", "--quiet"]

    def interrupted(*arguments: Any) -> torch.Tensor:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("Ctrl-C pressed twice ends at once")

    with monkeypatch.context() as patch:
        patch.setattr(TargetLoss, "__call__", interrupted)
        result = CliRunner().invoke(app, options)
    assert result.exit_code == 130
    resume = f"hashee fit --output '{tmp_path / 'out dir'}' --resume"
    assert resume in result.output.replace("\n", "")
    result = CliRunner().invoke(app, ["--output", str(tmp_path / "out dir"), "--resume"])
    assert result.exit_code == 0, result.output
    run = json.loads((tmp_path / "out dir" / "run.json").read_text())
    assert run["recipe"]["learning_rate"] == 0.01
    assert run["metrics"]["test"] is None
    assert "by random" in result.output
    finished = (tmp_path / "out dir" / "run.json").stat().st_mtime_ns
    assert CliRunner().invoke(app, ["--output", str(tmp_path / "out dir"), "--resume"]).exit_code == 0
    assert (tmp_path / "out dir" / "run.json").stat().st_mtime_ns == finished, "what is finished is only read"


def write_rows(path: Path) -> Path:
    """Write the training examples to a file."""
    lines = [json.dumps({"text": text, "label": target}) for text, target in zip(*_rows(), strict=True)]
    path.write_text("\n".join(lines))
    return path


def test_sigterm_finishes_the_step_and_exits_with_143(backbone: Path, tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "train.jsonl")
    options = ["--task", str(rows), "--hash", "random", "--backbone", str(backbone), "--no-warm-start"]
    options += ["--epochs", "400", "--eval-steps", "1000", "--quiet", "--threads", "1"]
    command_line = [sys.executable, "-m", "hashee", "fit", *options, "--output", str(tmp_path / "out")]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command_line, stdout=log, stderr=log)
        started = tmp_path / "out" / "work" / "random" / "started.json"
        until = time.monotonic() + 300
        while not started.exists() and time.monotonic() < until:
            assert process.poll() is None, (tmp_path / "log").read_text()
            time.sleep(0.01)
        time.sleep(2)  # it is in the midst of its steps
        process.terminate()
        assert process.wait(timeout=300) == 143, (tmp_path / "log").read_text()
    said = (tmp_path / "log").read_text().splitlines()
    assert "writing a checkpoint; send the signal again to stop without it" in said
    assert said[-1] == f"terminated; go on with: hashee fit --output {tmp_path / 'out'} --resume"
    assert last_complete(started.parent / "checkpoints") is not None, "no look at dev was due yet, and it was stopped"
    stored = json.loads((tmp_path / "out" / "work" / "settings.json").read_text())
    assert stored["threads"] == 1


def test_sigterm_loses_nothing(cadence: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options, whole = cadence
    loss, calls = TargetLoss.__call__, []

    def terminated(*arguments: Any) -> torch.Tensor:
        calls.append(1)
        if len(calls) == 8:
            signal.raise_signal(signal.SIGTERM)
        return loss(*arguments)

    with monkeypatch.context() as patch, sigterm_raises(), pytest.raises(Stopped):
        patch.setattr(TargetLoss, "__call__", terminated)
        fit(task=make_data(train=EXAMPLES), output=tmp_path / "out", **options)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert len(calls) == 8, "no step after the signal"
    fit(task=make_data(train=EXAMPLES), output=tmp_path / "out", resume=True, quiet=True)
    assert_equal(tmp_path / "out", whole)


def test_a_signal_that_is_ignored_stays_ignored(
    backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever starts a run with nohup, or in the background of a script, wants it to go on."""
    loss = TargetLoss.__call__

    def disturbed(*arguments: Any) -> torch.Tensor:
        signal.raise_signal(signal.SIGINT)
        return loss(*arguments)

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        monkeypatch.setattr(TargetLoss, "__call__", disturbed)
        options = OPTIONS | {"warm_start": False, "epochs": 1}
        fit(task=make_data(train=EXAMPLES), backbone=str(backbone), output=tmp_path / "out", **options)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (tmp_path / "out" / "run.json").exists()


def test_threads_are_those_that_were_asked_for_also_when_resumed(backbone: Path, tmp_path: Path) -> None:
    before = torch.get_num_threads()
    options = OPTIONS | {"warm_start": False, "epochs": 1, "threads": 3}
    run = fit(task=make_data(train=16), backbone=str(backbone), output=tmp_path / "out", **options).run
    assert run["hardware"]["threads"] == 3 and torch.get_num_threads() == before
    stored = complete_settings(None, {"task": make_data(train=16), "output": tmp_path / "out", "resume": True})
    assert stored.threads == 3
    assert not replace(stored, threads=1).differences(run["settings"]), "another number is no other run"
    with pytest.raises(InputError, match="threads is 0; it must be from 1"):
        fit(task=make_data(train=16), output=tmp_path / "out", threads=0)


def _rows() -> tuple[list[Any], list[Any]]:
    train = make_data(train=EXAMPLES).train
    return list(train.texts), list(train.targets or ())


def test_data_that_changed_meanwhile_are_noticed(undisturbed: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="resume it there, with task="):
        fit(output=undisturbed, resume=True)
    with pytest.raises(InputError, match=r"was begun otherwise: task was .* and is now"):
        fit(task=make_data(train=20), output=undisturbed, resume=True)
