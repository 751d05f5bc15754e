"""A kill while a run is replaced by another leaves the old model, the new one, or a folder that is refused."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fitting_data import make_data

import hashee
from hashee.data.task import TaskData
from hashee.errors import HasheeError, InputError
from hashee.training import FitSettings, fit
from hashee.training.entry import claim_output
from hashee.training.outcome import write_model

TEXTS = ["the film is good", "a bad story", "never bad", "zebra", "the cat sat on the good mat"]
EXAMPLES = 32


def swapped(data: TaskData) -> TaskData:
    """Return the same task with its two labels in the other order."""
    return replace(data, task=replace(data.task, labels=data.task.labels[::-1]), fingerprint="swapped")


@pytest.fixture(scope="module")
def runs(backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Folders of two finished runs whose labels are swapped."""
    folders = []
    for name, data in (("old", make_data(train=EXAMPLES)), ("new", swapped(make_data(train=EXAMPLES)))):
        folders.append(tmp_path_factory.mktemp("runs") / name)
        options: dict[str, Any] = {"hash": "frequency", "epochs": 1, "warm_start": False, "quiet": True}
        fit(task=data, backbone=str(backbone), output=folders[-1], **options)
    return folders[0], folders[1]


def answers(folder: Path) -> list[Any] | None:
    """Return what the model in a folder says to some texts, with the names of its labels; None if it is refused.

    Any other error is an answer of its own, which no whole model gives.
    """
    try:
        model = hashee.load(folder)
        logits = [row.tolist() for row in model.predict(TEXTS, progress=False)]
    except HasheeError:
        return None
    except Exception as error:
        return [type(error).__name__, str(error)]
    return [model.config.id2label, logits]


def killed_at_every_change(work: Path, **job: Any) -> list[Path]:
    """Return a folder for each change of the file system that the job was killed at, and the last for its end."""
    script = Path(__file__).with_name("killed_writing.py")
    done = subprocess.run(
        [sys.executable, str(script), str(work), json.dumps(job)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [work / str(number + 1) for number in range(int(done.stdout))]


def test_a_model_that_is_replaced_is_never_a_mixture(runs: tuple[Path, Path], tmp_path: Path) -> None:
    old, new = runs
    shutil.copytree(old, tmp_path / "old")
    expected = {"old": answers(old), "new": answers(new), "refused": None}
    assert expected["old"] != expected["new"]
    outcomes, records = [], []
    for folder in killed_at_every_change(tmp_path, do="write", source=str(new)):
        found = answers(folder)
        outcomes.append(next((name for name, each in expected.items() if found == each), "neither"))
        if (folder / "run.json").exists() and found is not None:
            theirs = json.loads((folder / "run.json").read_text())["data"]["fingerprint"]
            records.append((outcomes[-1], "new" if theirs == "swapped" else "old"))
    assert len(outcomes) > 20, "so many files are written"
    assert outcomes[0] == "old" and outcomes[-1] == "new"
    assert set(outcomes) == {"old", "refused", "new"}, outcomes
    assert outcomes == sorted(outcomes, key=["old", "refused", "new"].index)
    assert all(outcome == record for outcome, record in records), "run.json is of the model that it lies with"


def test_files_of_the_old_model_are_not_read_as_parts_of_the_new(runs: tuple[Path, Path], tmp_path: Path) -> None:
    old, new = runs
    folder = shutil.copytree(old, tmp_path / "out")
    for name in ("model-00001-of-00002.safetensors", "added_tokens.json", "spiece.model"):
        (folder / name).write_text("{}")
    (folder / "notes.txt").write_text("my own")
    (folder / "report").mkdir()
    write_model(new, folder, json.loads((new / "run.json").read_text()))
    assert {path.name for path in folder.iterdir()} == {path.name for path in new.iterdir()} | {"notes.txt", "report"}
    assert answers(folder) == answers(new)


def test_temporary_files_stay_behind(runs: tuple[Path, Path], tmp_path: Path) -> None:
    source = shutil.copytree(runs[1], tmp_path / "source")
    (source / ".stage.json.x1y2").write_text("{")
    write_model(source, tmp_path / "out", json.loads((source / "run.json").read_text()))
    assert not [path.name for path in (tmp_path / "out").iterdir() if path.name.startswith(".")]


def test_a_run_whose_replacing_was_killed_at_its_beginning_can_be_replaced(
    runs: tuple[Path, Path], tmp_path: Path
) -> None:
    old, _ = runs
    shutil.copytree(old, tmp_path / "old")
    (tmp_path / "old" / "seed-3" / "work").mkdir(parents=True)
    data = make_data(train=EXAMPLES - 1)
    before = answers(old)
    folders = killed_at_every_change(tmp_path, do="claim", train=EXAMPLES - 1)
    assert len(folders) > 5
    for folder in folders:
        assert answers(folder) == before, "the old model stays until there is a new one"
        for changes in ({"resume": True}, {"overwrite": True}):
            copy = shutil.copytree(folder, tmp_path / "copy")
            settings = FitSettings(task=data, output=copy, seed=1, **changes)
            try:
                claim_output(settings, data)
            except InputError as error:
                assert "resume" in changes and "was begun otherwise" in str(error), error
            shutil.rmtree(copy)


def test_a_run_that_was_killed_while_its_model_is_replaced_is_resumed(
    runs: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = runs
    output = shutil.copytree(old, tmp_path / "out")
    settings = json.loads((new / "run.json").read_text())["settings"]
    options = {name: settings[name] for name in ("backbone", "hash", "epochs", "warm_start", "quiet")}
    data = swapped(make_data(train=EXAMPLES))
    replaced = Path.replace

    def killed(path: Path, target: Path) -> Path:
        if target == output / "model.safetensors":
            raise SystemExit("killed")
        return replaced(path, target)

    with monkeypatch.context() as patch, pytest.raises(SystemExit, match="killed"):
        patch.setattr(Path, "replace", killed)
        fit(task=data, output=output, overwrite=True, **options)
    assert answers(output) is None
    with pytest.raises(InputError, match="holds a run already"):
        fit(task=data, output=output, **options)
    fit(task=data, output=output, resume=True, quiet=True)
    assert answers(output) == answers(new)


def test_a_run_with_the_same_settings_is_fitted_again_where_that_is_asked_for(
    runs: tuple[Path, Path], tmp_path: Path
) -> None:
    output = shutil.copytree(runs[0], tmp_path / "out")
    settings = json.loads((output / "run.json").read_text())["settings"]
    options = {name: settings[name] for name in ("backbone", "hash", "epochs", "warm_start", "quiet")}
    before = (output / "run.json").stat().st_mtime_ns
    fit(task=make_data(train=EXAMPLES), output=output, overwrite=True, **options)
    assert (output / "run.json").stat().st_mtime_ns > before
    assert not (output / "work").exists()
    assert answers(output) == answers(runs[0])


def test_what_was_stopped_before_it_had_begun_says_so(tmp_path: Path) -> None:
    (tmp_path / "out" / "work").mkdir(parents=True)
    with pytest.raises(InputError, match=r"nothing in .* says what was being fitted.*start it with the whole command"):
        fit(output=tmp_path / "out", resume=True)
    for text in ("", "{", "[]", "null", '{"tas": 1}', '{"task": 1, "unknown": 2}'):
        (tmp_path / "out" / "work" / "settings.json").write_text(text)
        with pytest.raises(InputError, match=r"nothing in .* says what was being fitted"):
            fit(output=tmp_path / "out", resume=True)
