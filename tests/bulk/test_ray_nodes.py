"""A bulk job on a Ray cluster of two nodes, one of which is lost on the way: every row is there, once."""

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from jobs import contents, make_job, make_texts, write_rows

from hashee.bulk.ray_engine import RayEngine
from hashee.bulk.run import run_job

pytestmark = pytest.mark.ray


def test_a_lost_node_changes_no_byte(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason='there is no ray; pip install "hashee[ray]"')
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_worker_niceness", "0")
    from ray.cluster_utils import Cluster

    job = make_job(model, write_rows(tmp_path / "rows.jsonl", make_texts(1500)), tmp_path / "here", part_rows=5)
    run_job(job)
    there = replace(job, output=tmp_path / "there")
    there.output.mkdir()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    lost: list[int] = []
    try:
        node = cluster.add_node(num_cpus=1)

        def lose_it() -> None:
            """Take the node away once both have written something."""
            deadline = time.monotonic() + 120
            while len(list(there.output.glob("part-*"))) < 20 and time.monotonic() < deadline:
                time.sleep(0.01)
            lost.append(len(list(there.output.glob("part-*"))))
            cluster.remove_node(node, allow_graceful=False)

        loser = threading.Thread(target=lose_it)
        loser.start()
        summary = run_job(there, RayEngine(address=cluster.address, actors=2))
        loser.join()
    finally:
        cluster.shutdown()
    parts = len(list(there.output.glob("part-*")))
    assert 20 <= lost[0] < parts, "the node was lost on the way"
    assert summary.rows == 1495
    assert contents(there.output) == contents(job.output)
