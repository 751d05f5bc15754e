"""Ctrl-C, SIGTERM and readers that go away end a command quietly and leave nothing behind."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForSequenceClassification

import hashee
from architectures import make_model

WORKING = """
import os, pathlib, sys, time
import hashee.hf.predict
run = hashee.hf.predict.run_batch
def slowly(*arguments):
    pathlib.Path(os.environ["BEGUN"]).touch()
    time.sleep(0.02)
    return run(*arguments)
hashee.hf.predict.run_batch = slowly
from hashee.cli import main
main()
"""
"""`hashee` on a machine that takes its time, and says when it is at work."""
BUFFERED = os.environ | {"PYTHONUNBUFFERED": ""}
"""Output goes out when the process ends, which is when its failure is hardest to tell."""


@pytest.fixture(scope="module")
def folder(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    dense = make_model("bert", AutoModelForSequenceClassification, vocab_size=len(tokenizer))
    table = hashee.ExitTable.by_frequency(tokenizer, ["the film is good"], num_layers=4, progress=False)
    path = tmp_path_factory.mktemp("converted")
    hashee.convert(dense, table, tokenizer=tokenizer).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.mark.parametrize(
    ("number", "code", "says"), [(signal.SIGTERM, 143, "terminated"), (signal.SIGINT, 130, "interrupted")]
)
def test_signals_end_a_command_with_one_line_and_no_files(
    folder: Path, tmp_path: Path, number: signal.Signals, code: int, says: str
) -> None:
    (tmp_path / "texts.txt").write_text("the film is good\n" * 20_000)
    arguments = ["predict", folder, tmp_path / "texts.txt", tmp_path / "out.jsonl", "--batch-tokens", "8"]
    process = subprocess.Popen(
        [sys.executable, "-c", WORKING, *map(str, arguments)],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"BEGUN": str(tmp_path / "begun")},
    )
    limit = time.monotonic() + 300
    while not (tmp_path / "begun").exists():
        assert process.poll() is None and time.monotonic() < limit, process.communicate()
        time.sleep(0.05)
    process.send_signal(number)
    out, err = process.communicate(timeout=300)
    assert process.returncode == code, err
    assert [line for line in re.split(r"[\r\n]", err) if line.strip() and "predicting" not in line] == [says]
    assert out == ""
    assert {path.name for path in tmp_path.iterdir()} == {"texts.txt", "begun"}


def test_a_killed_prediction_leaves_no_file_that_looks_finished(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("the film is good\n" * 20_000)
    (tmp_path / "out.jsonl").write_text("the old answers\n")
    arguments = ["predict", folder, tmp_path / "texts.txt", tmp_path / "out.jsonl", "--batch-tokens", "8"]
    process = subprocess.Popen(
        [sys.executable, "-c", WORKING, *map(str, arguments)],
        stderr=subprocess.DEVNULL,
        env=os.environ | {"BEGUN": str(tmp_path / "begun")},
    )
    while not (tmp_path / "begun").exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.kill()
    process.wait()
    assert (tmp_path / "out.jsonl").read_text() == "the old answers\n"


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_reader_that_goes_away_is_no_error(folder: Path, options: list[str]) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    command = [sys.executable, "-m", "hashee", "explain", str(folder), "the film", *options]
    done = subprocess.run(command, stdout=writes, stderr=subprocess.PIPE, text=True, env=BUFFERED, check=False)
    os.close(writes)
    assert done.stderr == "" and done.returncode == 1


def test_a_full_disk_is_one_line(folder: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full")
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "hashee", "explain", str(folder), "the film", "--json"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=BUFFERED, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: No space left") and done.stderr.count("\n") == 1


def test_a_forked_worker_does_not_clean_up_for_its_parent(tmp_path: Path) -> None:
    # The parent's files must outlive a child that is told to stop.
    code = """
import os, pathlib, signal, sys, time
from hashee.training.stopping import sigterm_raises
from hashee.files import replaced_atomically
with sigterm_raises(), replaced_atomically(pathlib.Path(sys.argv[1])) as draft:
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writes, b"up")
        time.sleep(60)
        os._exit(0)
    os.read(reads, 2)
    os.kill(child, signal.SIGTERM)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGTERM
    assert draft.exists()
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "file")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


IGNORED = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
STOPPED_TWICE = """
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    except Stopped as stopped:
        assert (stopped.code, stopped.reason) == (143, "terminated")
        os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.parametrize(("before", "code"), [("", -signal.SIGTERM), (IGNORED, 0)])
def test_a_second_signal_is_not_waited_for_and_an_ignored_one_stays_ignored(before: str, code: int) -> None:
    start = f"import os, signal\nfrom hashee.training.stopping import Stopped, sigterm_raises\n{before}\n"
    program = f"{start}with sigterm_raises():{STOPPED_TWICE}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
