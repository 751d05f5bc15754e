"""Files are replaced whole: on the disk before the name changes, and the old ones stay when the disk is full."""

import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForSequenceClassification

import hashee
import hashee.export
from architectures import LAYERS, make_model
from hashee import cli
from hashee.files import replaced_atomically, replaced_model
from small_tokenizer import make_tokenizer


@contextmanager
def small_disk(size: int) -> Iterator[None]:
    """Let no file grow beyond so many bytes, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_file_is_on_the_disk_before_it_takes_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def watched_fsync(handle: int) -> None:
        steps.append(f"sync {'folder' if Path(f'/proc/self/fd/{handle}').resolve().is_dir() else 'file'}")
        fsync(handle)

    def watched_replace(path: Path, target: Any) -> Any:
        steps.append("rename")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(Path, "replace", watched_replace)
    with replaced_atomically(tmp_path / "file") as temporary:
        temporary.write_text("new")
    assert steps == ["sync file", "rename", "sync folder"]
    assert (tmp_path / "file").read_text() == "new"


@pytest.fixture
def model(tmp_path: Path) -> Any:
    tokenizer = make_tokenizer()
    dense = make_model("bert", AutoModelForSequenceClassification, vocab_size=len(tokenizer))
    table = hashee.ExitTable.by_frequency(tokenizer, ["the film is good"], num_layers=LAYERS, progress=False)
    converted = hashee.convert(dense, table, tokenizer=tokenizer)
    converted.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    table.save(tmp_path / "table")
    hashee.export.export_onnx(converted, tmp_path / "exported")
    return converted


# Room for nothing, and for some of the files but not all.
@pytest.mark.parametrize("room", [0, 600, 4000])
@pytest.mark.parametrize("output", ["table", "exported"])
def test_a_full_disk_is_one_line_and_the_old_files_stay(
    output: str,
    room: int,
    model: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = contents(tmp_path / output)
    (tmp_path / "texts.txt").write_text("a dull plot\n")
    if output == "table":
        room = min(room, 600)
        tokenizer = ["--tokenizer", str(tmp_path / "model")]
        arguments = ["table", "build", str(tmp_path / "texts.txt"), *tokenizer, "--num-layers", "4", "--output"]
    else:
        arguments = ["export", "onnx", str(tmp_path / "model")]
    monkeypatch.setattr(sys, "argv", ["hashee", *arguments, str(tmp_path / output)])
    names = sorted(path.name for path in tmp_path.iterdir())
    capsys.readouterr()
    with pytest.raises(SystemExit) as caught, small_disk(room):
        cli.main()
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: no space to write to {tmp_path / output}")
    assert error.count("\n") == 1
    assert contents(tmp_path / output) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_folders_of_a_model_are_replaced_with_it(tmp_path: Path) -> None:
    for version in ("old", "new"):
        with replaced_model(tmp_path, "record.json") as incoming:
            (incoming / "1_Pooling").mkdir()
            (incoming / "1_Pooling" / f"{version}.json").write_text("{}")
            (incoming / "config.json").write_text(version)
    assert [path.name for path in (tmp_path / "1_Pooling").iterdir()] == ["new.json"]
    assert (tmp_path / "config.json").read_text() == "new"
