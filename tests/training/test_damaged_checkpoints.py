"""A checkpoint that is damaged is left out, and the run ends as if nothing had happened."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from fitting_data import make_data
from safetensors.torch import load_file
from transformers import TrainerState

from hashee.errors import HasheeError
from hashee.training import fit, stages
from hashee.training.objective import TargetLoss
from hashee.training.stage import Checkpoints, last_complete

EXAMPLES = 48
OPTIONS: dict[str, Any] = {"hash": "frequency", "epochs": 3, "warm_start": False, "quiet": True}
DAMAGES = {
    "empty": lambda content: b"",
    "half": lambda content: content[: len(content) // 2],
    "flipped": lambda content: bytes(each ^ (0x10 if index % 97 == 50 else 0) for index, each in enumerate(content)),
}


class Killed(BaseException):
    """As if by a signal: nothing is tidied up."""


@pytest.fixture(scope="module")
def undisturbed(backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a run of 3 epochs of 6 steps comes to when it is left alone."""
    output = tmp_path_factory.mktemp("undisturbed") / "out"
    fit(task=make_data(train=EXAMPLES), backbone=str(backbone), output=output, **OPTIONS)
    return output


@pytest.fixture(scope="module")
def stopped(backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed in its 15th step, two checkpoints after its beginning."""
    output = tmp_path_factory.mktemp("stopped") / "out"
    loss, calls = TargetLoss.__call__, []

    def killed(*arguments: Any) -> torch.Tensor:
        calls.append(1)
        if len(calls) == 15:
            raise Killed
        return loss(*arguments)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(TargetLoss, "__call__", killed)
        fit(task=make_data(train=EXAMPLES), backbone=str(backbone), output=output, **OPTIONS)
    assert sorted(path.name for path in checkpoints(output).iterdir()) == ["checkpoint-12", "checkpoint-6"]
    return output


def checkpoints(output: Path) -> Path:
    return output / "work" / "frequency" / "checkpoints"


def assert_equal(output: Path, other: Path) -> None:
    mine, theirs = load_file(output / "model.safetensors"), load_file(other / "model.safetensors")
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    runs = [json.loads((folder / "run.json").read_text()) for folder in (output, other)]
    assert runs[0]["metrics"] == runs[1]["metrics"]


def resumed(output: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Resume a run and return what it says."""
    capsys.readouterr()
    fit(task=make_data(train=EXAMPLES), output=output, resume=True, quiet=True)
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("note:")]


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_run_goes_on_from_the_checkpoint_before(
    damage: str, stopped: Path, undisturbed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = sorted(path.name for path in (checkpoints(stopped) / "checkpoint-12").iterdir())
    assert {"optimizer.pt", "scheduler.pt", "model.safetensors", "rng_state.pth", "trainer_state.json"} <= set(names)
    for name in names:
        output = shutil.copytree(stopped, tmp_path / name)
        path = checkpoints(output) / "checkpoint-12" / name
        path.write_bytes(DAMAGES[damage](path.read_bytes()))
        notes = resumed(output, capsys)
        assert len(notes) == 1, name
        assert notes[0].startswith("note: left out checkpoint-12 ("), name
        assert notes[0].endswith("; going on from checkpoint-6"), name
        assert_equal(output, undisturbed)


def test_without_a_whole_checkpoint_the_training_begins_again(
    stopped: Path, undisturbed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = shutil.copytree(stopped, tmp_path / "out")
    for step in (6, 12):
        (checkpoints(output) / f"checkpoint-{step}" / "optimizer.pt").write_bytes(b"")
    (note,) = resumed(output, capsys)
    assert "checkpoint-12 (" in note and "checkpoint-6 (optimizer.pt is damaged" in note
    assert note.endswith("; training from the start")
    assert_equal(output, undisturbed)


def test_a_damaged_model_of_a_finished_stage_is_trained_again(
    backbone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"task": make_data(train=EXAMPLES), "hash": "frequency", "epochs": 1, "quiet": True}
    fit(backbone=str(backbone), output=tmp_path / "whole", **options)
    output = shutil.copytree(tmp_path / "whole", tmp_path / "out")
    path = output / "dense" / "model.safetensors"
    path.write_bytes(DAMAGES["flipped"](path.read_bytes()))
    capsys.readouterr()
    fit(backbone=str(backbone), output=output, overwrite=True, **options)
    assert "dense, model.safetensors is damaged or has been changed; training again" in capsys.readouterr().err
    assert_equal(output, tmp_path / "whole")


def test_a_damaged_table_is_made_again(stopped: Path, undisturbed: Path, tmp_path: Path) -> None:
    output = shutil.copytree(stopped, tmp_path / "out")
    for path in (output / "work" / "frequency" / "table").glob("exit_table*"):
        path.write_bytes(DAMAGES["half"](path.read_bytes()))
    fit(task=make_data(train=EXAMPLES), output=output, resume=True, quiet=True)
    assert_equal(output, undisturbed)


def test_a_best_checkpoint_that_is_gone_is_one_line(
    backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first look at dev is the best, and somebody deletes its checkpoint before the last step."""
    output, options = tmp_path / "out", OPTIONS | {"task": make_data(train=EXAMPLES), "backbone": str(backbone)}
    loss, steps, looks = TargetLoss.__call__, [], []

    def worse_and_worse(*arguments: Any) -> dict[str, float]:
        looks.append(1)
        return {"score": 1 / len(looks)}

    def removed(*arguments: Any) -> torch.Tensor:
        steps.append(1)
        if len(steps) == 18:
            shutil.rmtree(checkpoints(output) / "checkpoint-6")
        return loss(*arguments)

    monkeypatch.setattr(stages, "scores", worse_and_worse)
    with (
        monkeypatch.context() as patch,
        pytest.raises(HasheeError, match=r"the best checkpoint, .*, is gone; train"),
    ):
        patch.setattr(TargetLoss, "__call__", removed)
        fit(output=output, **options)
    looks.clear()
    run = fit(output=output, resume=True, **options).run
    assert run["candidates"][0]["best_step"] == 6 and run["candidates"][0]["steps"] == 18


# --- which checkpoints are kept and used -------------------------------------------------------------------------


def write(folder: Path, step: int, best: int | None) -> None:
    """Write a checkpoint as the Trainer does, and complete it."""
    state = TrainerState(global_step=step, best_global_step=best, max_steps=30)
    (folder / f"checkpoint-{step}").mkdir(parents=True)
    (folder / f"checkpoint-{step}" / "model.safetensors").write_text(f"weights {step}")
    state.save_to_json(str(folder / f"checkpoint-{step}" / "trainer_state.json"))
    Checkpoints(folder).on_save(None, state, None)


def steps_in(folder: Path) -> list[int]:
    return sorted(int(path.name.split("-")[1]) for path in folder.iterdir())


def test_the_last_and_the_best_are_kept_or_the_last_two(tmp_path: Path) -> None:
    for step, best, kept in ((2, None, [2]), (6, 6, [2, 6]), (8, 6, [6, 8]), (12, 6, [6, 12]), (18, 18, [12, 18])):
        write(tmp_path, step, best)
        assert steps_in(tmp_path) == kept
    # The best that 12 knew of was deleted; the same steps lead to 18 again.
    (tmp_path / "checkpoint-18" / "model.safetensors").write_text("")
    assert last_complete(tmp_path) == tmp_path / "checkpoint-12"
    assert steps_in(tmp_path) == [12]


def test_one_whose_best_is_gone_is_of_no_use_at_the_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, 6, 6)
    write(tmp_path, 30, 6)
    assert last_complete(tmp_path, lambda state: True) == tmp_path / "checkpoint-30"
    shutil.rmtree(tmp_path / "checkpoint-6")
    assert last_complete(tmp_path, lambda state: state.global_step >= state.max_steps) is None
    line = "note: left out checkpoint-30 (the best before it, checkpoint-6, is missing); training from the start\n"
    assert capsys.readouterr().err == line


def test_one_whose_best_is_damaged_is_of_no_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, 6, 6)
    write(tmp_path, 12, 6)
    (tmp_path / "checkpoint-6" / "model.safetensors").unlink()
    assert last_complete(tmp_path) is None
    assert steps_in(tmp_path) == []
    note = capsys.readouterr().err
    assert "checkpoint-12 (in the best before it, checkpoint-6, model.safetensors is missing), checkpoint-6 (" in note


def test_steps_are_numbers(tmp_path: Path) -> None:
    for step in (8, 10):
        write(tmp_path, step, None)
    (tmp_path / "checkpoint-11").mkdir()
    assert last_complete(tmp_path) == tmp_path / "checkpoint-10"
