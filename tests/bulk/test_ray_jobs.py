"""Bulk jobs on a real Ray cluster on this machine: the bytes of a local job, also when its workers are killed."""

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from jobs import contents, make_job, make_texts

from hashee.bulk.inputs import Shard
from hashee.bulk.parts import PartFolder
from hashee.bulk.ray_actors import PartScorer, read_shard
from hashee.bulk.ray_engine import RayEngine
from hashee.bulk.ray_tables import count_on_ray
from hashee.bulk.ray_tasks import measure_chunk
from hashee.bulk.run import run_job
from hashee.bulk.settings import Format
from hashee.bulk.work import Work
from hashee.hf.opening import open_tokenizer
from hashee.study.ray_engine import connected
from hashee.study.workers import Workers
from hashee.tables.counting import count_tokens
from tiny_text_models import make_folder

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A Ray cluster of two cores that the tests share; without ray they are skipped and say so."""
    ray = pytest.importorskip("ray", reason='there is no ray; pip install "hashee[ray]"')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # Ray's workers are nice to whatever else runs, which on a busy machine makes seconds minutes.
        patch.setenv("RAY_worker_niceness", "0")
        with connected(ray, Workers("ray", jobs=2, threads=1)):
            yield


def kill_actors(folder: Path, killed: list[int]) -> None:
    """Kill all processes that score, once one has written something."""
    deadline = time.monotonic() + 60
    while not list(folder.glob("part-*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    for process in psutil.Process().children(recursive=True):
        if "PartScorer" in " ".join(process.cmdline()):
            os.kill(process.pid, signal.SIGKILL)
            killed.append(process.pid)


def test_killed_actors_change_no_byte(cluster: None, model: Path, texts: Path, tmp_path: Path) -> None:
    job = make_job(model, texts, tmp_path / "here", part_rows=10)
    run_job(job)
    killed: list[int] = []
    there = replace(job, output=tmp_path / "there")
    there.output.mkdir()
    killer = threading.Thread(target=kill_actors, args=(there.output, killed))
    killer.start()
    summary = run_job(there, RayEngine(actors=2))
    killer.join()
    assert killed and summary.rows == 295
    assert contents(there.output) == contents(job.output)


def test_what_is_wrong_on_a_node_is_reported(model: Path, texts: Path, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text((model / "config.json").read_text())
    shard = Shard(0, (texts.name,))
    folder = PartFolder(tmp_path, Format.jsonl, False, "line")

    def report(model: Path, sign: Path, texts: Path) -> dict[str, Any]:
        """Run what nodes run, in this process."""
        work = Work(make_job(model, texts, tmp_path), (shard,), folder)
        part = next(read_shard(pyarrow.table({"shard": [0]}), work))
        found = PartScorer(work, str(sign))(pyarrow.table(part))
        return dict(json.loads(found["json"][0]))

    assert report(model, model / "config.json", texts) == {"rows": 16}
    assert "safetensors" in report(tmp_path / "broken", texts, texts)["error"]
    assert f"does not see {tmp_path}" in report(model, tmp_path / "nowhere", texts)["error"]
    # What one node lacks is no fault of the row.
    assert "does not exist" in report(model, texts, tmp_path / "rows.jsonl")["error"]


def test_counts_add_up_to_those_of_one_process(cluster: None, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hashee.bulk.ray_tables._COUNTED", 70)
    texts, labels = make_texts(200), [number % 3 for number in range(200)]
    tokenizer = open_tokenizer(model)
    assert count_on_ray(str(model), texts) == count_tokens(tokenizer, texts, progress=False)
    assert count_on_ray(str(model), texts, labels) == count_tokens(tokenizer, texts, labels, progress=False)


def test_importance_of_chunks_adds_up(tmp_path: Path) -> None:
    texts, folder = make_texts(200), str(make_folder(tmp_path / "dense"))
    found = measure_chunk(folder, texts[:100], 0) + measure_chunk(folder, texts[100:], 1)
    whole = measure_chunk(folder, texts, 0)
    assert (found.corpus, found.signal) == (whole.corpus, whole.signal)
    # The projections are drawn, the rest is the same.
    assert np.corrcoef(found.absolute.sum(0), whole.absolute.sum(0))[0, 1] > 0.99
