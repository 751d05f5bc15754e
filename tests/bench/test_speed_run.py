"""Workers take turns, and whatever goes wrong with one of them is said and stops nobody else."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import speed_test_baselines
import torch
from transformers import AutoModelForSequenceClassification, BertConfig

from hashee.bench import run, workloads
from hashee.bench.baselines import BASELINES, REFERENCE
from hashee.bench.process import WorkerFailed, WorkerProcess
from hashee.bench.protocol import Benchmark, Row
from hashee.bench.run import run_benchmark
from hashee.bench.workloads import Workload, tokenize
from hashee.tables.table import ExitTable
from small_tokenizer import make_tokenizer

TEXTS = ["the cat sat", "a film", "the dog is good", "a great story of the actor", "never dull", "always on the mat"]


def save_tiny(folder: Path) -> None:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(make_tokenizer()),
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=40,
        max_position_embeddings=64,
    )
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)


def tiny_workload(name: str, num_layers: int) -> Workload:
    tokenizer = make_tokenizer()
    table = ExitTable.by_frequency(tokenizer, TEXTS, num_layers=num_layers, progress=False)
    return Workload(name, tokenize(tokenizer, list(TEXTS)), table, texts=6)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A model and texts of no size, and a path on which workers find the baselines of these tests."""
    monkeypatch.setitem(workloads.MODELS, "test", save_tiny)
    monkeypatch.setattr(run, "load_workload", tiny_workload)
    monkeypatch.setattr(run, "SGEMM_SIZE", 128)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    yield


def measured(folder: Path, *baselines: str, **fields: Any) -> dict[str, Row]:
    benchmark = Benchmark(
        **({"workload": "tiny", "model": "test", "batch_sizes": (3,), "baselines": baselines} | fields)
    )
    return {
        row.name: row for rows in run_benchmark(benchmark, folder, modules=("speed_test_baselines",)) for row in rows
    }


def test_rounds_are_interleaved_and_only_one_computes(tiny: None, tmp_path: Path) -> None:
    rows = measured(tmp_path, "plain", "other order", "coarse", rounds=6, batch_sizes=(6,))
    assert all(len(row.seconds) == 6 for row in rows.values())
    lines = (tmp_path / "log.txt").read_text().splitlines()
    for begin, end in zip(lines[::2], lines[1::2], strict=True):
        assert begin.removeprefix("begin ") == end.removeprefix("end "), "two workers computed at the same time"
    turns = [line.removeprefix("begin ") for line in lines[::2]]
    # One batch each: the first batch and the warm-up of every baseline come before any clock.
    timed = turns[6:]
    rounds = [tuple(timed[start : start + 3]) for start in range(0, len(timed), 3)]
    assert len(rounds) == 6 and all(sorted(order) == sorted(rows) for order in rounds)
    assert len(set(rounds)) > 1, "the order of the baselines never changed"


def test_whatever_fails_is_reported_and_stops_nobody(tiny: None, tmp_path: Path) -> None:
    names = [baseline.name for baseline in BASELINES.values() if baseline.models == ("test",)]
    rows = measured(tmp_path, *names, rounds=2, batch_sizes=(6,))
    assert list(rows) == names
    reasons = {name: row.skipped or "" for name, row in rows.items()}
    assert "no_such_package" in reasons["not installed"] and "pip install no-such-package" in reasons["not installed"]
    assert reasons["fails to load"] == "ValueError: no such weights"
    assert "ended with code 7" in reasons["dies"]
    assert "longer than 1 s" in reasons["hangs"]
    assert reasons["cannot be prepared"] == "cannot be prepared: RuntimeError: cannot export"
    assert "differ from plain by 1" in reasons["wrong"]
    assert all(rows[name].texts_per_second is None for name, reason in reasons.items() if reason)
    for name in ("plain", "other order", "coarse"):
        assert not reasons[name] and len(rows[name].seconds) == 2
    # An int8 baseline is off by nature: that is said, and it stays in.
    assert (rows["coarse"].max_difference, rows["coarse"].compared_with) == (1.0, "plain")
    assert rows["other order"].max_difference == 0.0
    assert (rows["plain"].peak_memory_mb or 0) > 1 and (rows["plain"].sgemm_gflops or 0) > 0


def test_light_workers_do_not_carry_torch(tiny: None, tmp_path: Path) -> None:
    rows = measured(tmp_path, "plain", rounds=1)
    assert 0 < (rows["plain"].peak_memory_mb or 0) < 150


def test_real_baselines_agree_and_are_put_in_proportion(tiny: None, tmp_path: Path) -> None:
    rows = measured(tmp_path, REFERENCE, "hashee full depth", "hashee", "authors", rounds=2)
    assert not [row.skipped for row in rows.values() if row.skipped]
    assert rows["hashee full depth"].compared_with == REFERENCE and rows["authors"].compared_with == "hashee"
    for name in ("hashee full depth", "authors"):
        assert (rows[name].max_difference or 0) <= 1e-5
    assert rows[REFERENCE].ratio == 1.0
    for row in rows.values():
        assert row.ratio == pytest.approx((row.texts_per_second or 0) / (rows[REFERENCE].texts_per_second or 1))
        assert row.utilisation == pytest.approx((row.executed_gflops or 0) / (row.sgemm_gflops or 1))
        assert row.texts == 6 and row.batch_size == 3 and row.rounds == 2


def test_training_is_compared_with_training(tiny: None, tmp_path: Path) -> None:
    rows = measured(tmp_path, training=True, rounds=1)
    assert set(rows) == {"transformers training", "hashee training"}
    assert rows["transformers training"].ratio == 1.0 and (rows["hashee training"].tokens_per_second or 0) > 0
    assert all(row.task == "training" for row in rows.values())


def test_the_budget_ends_the_rounds(tiny: None, tmp_path: Path) -> None:
    assert measured(tmp_path, "plain", rounds=50, budget_seconds=0.0)["plain"].rounds == 1


def test_a_worker_that_dies_says_how(tmp_path: Path) -> None:
    with WorkerProcess("x", 1, tmp_path / "log") as worker:
        worker.stop()
        with pytest.raises(WorkerFailed, match="killed by signal 9"):
            worker.ask("memory", 10.0)


def test_sgemm_peak_is_measured(tmp_path: Path) -> None:
    with WorkerProcess("sgemm", 1, tmp_path / "log") as worker:
        assert worker.ask("sgemm", 120.0, size=64, repeats=2)["gflops"] > 0


def test_the_test_baselines_are_registered() -> None:
    assert set(speed_test_baselines.NAMES) <= set(BASELINES)
