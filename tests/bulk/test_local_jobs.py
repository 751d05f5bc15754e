"""Bulk jobs on this machine: every row scored once, in order; what cannot be read is told; a kill changes nothing."""

import csv
import gzip
import json
import multiprocessing
import os
import random
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs import BROKEN, contents, make_job, make_texts, rows_of

import hashee
from hashee.bulk.manifest import held_alone
from hashee.bulk.run import run_job
from hashee.bulk.settings import BulkJob, Format, ModelOptions
from hashee.cli import app
from hashee.errors import InputError
from tiny_text_models import make_folder


def test_rows_are_scored_in_order_and_broken_ones_told(model: Path, texts: Path, tmp_path: Path) -> None:
    summary = run_job(make_job(model, texts, tmp_path / "out"))
    assert (summary.rows, summary.rejected, summary.parts) == (295, 5, 19)
    kept = [(number, text) for number, text in enumerate(make_texts(300), start=1) if number - 1 not in BROKEN]
    rows = rows_of(tmp_path / "out")
    assert [row["line"] for row in rows] == [number for number, _ in kept]
    logits = np.stack(list(hashee.load(model).predict([text for _, text in kept], progress=False)))
    assert [row["label"] for row in rows] == [("bad", "good")[index] for index in logits.argmax(-1)]
    rejects = [json.loads(line) for line in (tmp_path / "out" / "rejects.jsonl").read_text().splitlines()]
    assert [(each["file"], each["row"]) for each in rejects] == [("rows.jsonl", index + 1) for index in BROKEN]
    for each, says in zip(rejects, ("not valid JSON", "no column 'text'", "int", "not UTF-8", "half"), strict=True):
        assert says in each["reason"]
    assert set(contents(tmp_path / "out")) == {
        "manifest.json",
        "rejects.jsonl",
        *(f"part-00000-{number:06d}.jsonl" for number in range(19)),
    }


def write_folder(folder: Path) -> list[tuple[str, int, str]]:
    """Write texts in every format, among files that hold none, and return what is to be found there."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    one, two, three, four, five = (make_texts(100)[start : start + 20] for start in range(0, 100, 20))
    (folder / "below").mkdir(parents=True)
    (folder / "a.txt").write_text("\n".join(one))
    (folder / "b.jsonl.gz").write_bytes(gzip.compress("\n".join(json.dumps({"text": text}) for text in two).encode()))
    with (folder / "below" / "c.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["id", "text"], *(["1", text] for text in three)])
    (folder / "d.tsv").write_text("text\tid\n" + "".join(f"{text}\t1\n" for text in four))
    values = [text.encode() for text in five]
    values[3] = b"\xff"
    bad = pyarrow.Array.from_buffers(pyarrow.string(), 20, pyarrow.array(values, pyarrow.binary()).buffers())
    parquet.write_table(pyarrow.table({"text": bad}), folder / "e.parquet")
    for name in ("_SUCCESS", ".hidden.txt", "README.md"):
        (folder / name).write_text("no rows\n")
    found = [("a.txt", number, text) for number, text in enumerate(one, start=1)]
    found += [("b.jsonl.gz", number, text) for number, text in enumerate(two, start=1)]
    # A header is a line of its own.
    found += [("below/c.csv", number, text) for number, text in enumerate(three, start=2)]
    found += [("d.tsv", number, text) for number, text in enumerate(four, start=2)]
    return found + [("e.parquet", number, text) for number, text in enumerate(five, start=1) if number != 4]


def test_a_folder_of_every_format_becomes_parquet(model: Path, tmp_path: Path) -> None:
    found = write_folder(tmp_path / "in")
    job = make_job(model, tmp_path / "in", tmp_path / "out", format=Format.parquet, part_rows=30)
    assert run_job(job).rejected == 1
    rows = rows_of(tmp_path / "out", Format.parquet)
    assert [(row["file"], row["row"]) for row in rows] == [(name, number) for name, number, _ in found]
    expected = hashee.load(model).predict([text for _, _, text in found], progress=False)
    for row, logits in zip(rows, expected, strict=True):
        assert row["label"] == ("bad", "good")[logits.argmax()] and set(row["scores"]) == {"bad", "good"}
    reason = json.loads((tmp_path / "out" / "rejects.jsonl").read_text())
    assert (reason["file"], reason["row"]) == ("e.parquet", 4) and "not UTF-8" in reason["reason"]


def test_what_is_left_of_a_damaged_file_is_scored(model: Path, tmp_path: Path) -> None:
    packed = gzip.compress("\n".join(make_texts(4000)).encode(), mtime=0)
    (tmp_path / "cut.txt.gz").write_bytes(packed[: len(packed) // 2])
    summary = run_job(make_job(model, tmp_path / "cut.txt.gz", tmp_path / "out", part_rows=1024))
    assert 0 < summary.rows < 4000 and summary.rejected == 1
    assert "truncated gzip" in (tmp_path / "out" / "rejects.jsonl").read_text()


@pytest.mark.parametrize("scores", [False, True])
def test_embedders_and_rerankers(tmp_path: Path, scores: bool) -> None:
    library = pytest.importorskip("sentence_transformers")
    folder = make_folder(tmp_path / "plain", scores=scores)
    if scores:
        library.CrossEncoder(str(folder), device="cpu").save_pretrained(str(tmp_path / "model"))
    else:
        library.SentenceTransformer(str(folder), device="cpu").save(str(tmp_path / "model"))
    texts = make_texts(40)
    (tmp_path / "in.jsonl").write_text(
        "".join(json.dumps({"query": text, "document": "a film"}) + "\n" for text in texts)
    )
    job = make_job(tmp_path / "model", tmp_path / "in.jsonl", tmp_path / "out", column=None if scores else "query")
    assert run_job(job).rows == 40
    if scores:
        expected = library.CrossEncoder(str(tmp_path / "model"), device="cpu").predict(
            [(text, "a film") for text in texts]
        )
        found = 1 / (1 + np.exp(-np.array([row["score"] for row in rows_of(tmp_path / "out")])))
    else:
        expected = library.SentenceTransformer(str(tmp_path / "model"), device="cpu").encode(texts)
        found = np.array([row["embedding"] for row in rows_of(tmp_path / "out")])
    assert np.abs(found - expected).max() < 1e-5


def refused(job: BulkJob, says: str, **options: Any) -> None:
    with pytest.raises(InputError) as caught:
        run_job(job, **options)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_a_job_goes_on_as_it_was_begun_or_not_at_all(model: Path, texts: Path, tmp_path: Path) -> None:
    copied = tmp_path / "rows.jsonl"
    shutil.copy(texts, copied)
    job = make_job(model, copied, tmp_path / "out")
    run_job(job)
    before = contents(tmp_path / "out")
    refused(job, "is complete; go on with --resume")
    assert run_job(job, resume=True).rows == 295
    refused(replace(job, threads=2), "another threads (1, now 2)", resume=True)
    assert run_job(replace(job, threads=2), resume=True, threads_given=False).rows == 295
    refused(replace(job, rows=replace(job.rows, part_rows=8)), "another part_rows (16, now 8)", resume=True)
    other = shutil.copytree(model, tmp_path / "model")
    assert run_job(replace(job, model=ModelOptions(str(other))), resume=True).rows == 295, "a model may be moved"
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"id2label": {"0": "no", "1": "yes"}}))
    refused(replace(job, model=ModelOptions(str(other))), "another model (model)", resume=True)
    copied.write_bytes(copied.read_bytes().replace(b"film", b"FILM", 1))
    refused(job, "another input (rows.jsonl has changed)", resume=True)
    with held_alone(tmp_path / "out"):
        refused(job, "another run is writing", resume=True)
    assert contents(tmp_path / "out") == before
    shutil.copy(texts, copied)
    (tmp_path / "out" / "part-00000-000003.jsonl").unlink()
    refused(job, "part-00000-000003 is gone", resume=True)


def test_what_cannot_be_a_job_is_refused(model: Path, texts: Path, tmp_path: Path) -> None:
    refused(make_job(model, tmp_path / "nowhere", tmp_path / "out"), "does not exist")
    refused(make_job(model, texts.parent, texts.parent / "out"), "lies in the folder that is read")
    refused(make_job(model, texts, model), "holds other files and no manifest.json")
    refused(make_job(model, texts, texts), "is the file that is read")
    (tmp_path / "mixed").mkdir()
    (tmp_path / "mixed" / "a.txt").write_text("a film\n")
    (tmp_path / "mixed" / "b.csv").write_text("sentence1,sentence2\na,b\n")
    refused(make_job(model, tmp_path / "mixed", tmp_path / "out"), "holds single texts but")
    (tmp_path / "bad.jsonl").write_text("{\n[]\n")
    refused(
        make_job(model, tmp_path / "bad.jsonl", tmp_path / "out"), "no row could be read (bad.jsonl, 1: not valid JSON"
    )


def test_kills_at_any_moment_change_no_byte(model: Path, texts: Path, tmp_path: Path) -> None:
    job = make_job(model, texts, tmp_path / "whole", part_rows=4)
    run_job(job)
    killed = replace(job, output=tmp_path / "killed")
    chance = random.Random(0)
    # A copy of this process has everything imported, so that kills hit the job and not the start of Python.
    context = multiprocessing.get_context("fork")
    kills = 0
    for _ in range(100):
        process = context.Process(target=run_job, args=(killed,), kwargs={"resume": True})
        there = len(list(killed.output.glob("part-*")))
        process.start()
        while process.is_alive() and kills < 12 and len(list(killed.output.glob("part-*"))) == there:
            time.sleep(0.001)
        if kills < 12:
            time.sleep(chance.random() * 0.02)
            if process.is_alive():
                os.kill(process.pid or 0, signal.SIGKILL)
                kills += 1
        process.join(60)
        if process.exitcode == 0:
            break
    assert kills >= 8 and process.exitcode == 0
    assert contents(killed.output) == contents(tmp_path / "whole")


def test_a_plan_counts_and_measures(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(make_texts(30)))

    def plan(*options: str) -> dict[str, Any]:
        arguments = ["flops", str(model), str(tmp_path / "texts.txt"), "--plan", "--json", *options]
        app(arguments, standalone_mode=False)
        return dict(json.loads(capsys.readouterr().out))

    count = hashee.count_flops(hashee.load(model), make_texts(30), reads_first_row=False)
    given = plan("--macs-per-second", "1e9", "--rows", "1e6", "--cores", "2")
    assert given["with_exits"]["macs_per_text"] == pytest.approx(count.executed_macs / 30)
    assert given["dense"]["hours"] / given["with_exits"]["hours"] == pytest.approx(count.speedup)
    measured = plan("--rows", "1e6")["with_exits"]
    assert 0 < measured["macs_per_second"] < 1e13 and measured["hours"] > 0
