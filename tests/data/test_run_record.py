"""What `run.json` says is typed, reads back equal, and older files are still read."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hashee.data.run_record import RunRecord, TrainingRecord, read_run

TRAINING = {"fingerprint": "f", "dev": {"accuracy": 0.9, "score": 0.9}, "best_step": 6, "steps": 12, "seconds": 1.5}
METRICS = {"dev": {"accuracy": 0.9, "score": 0.9}, "test": None}
RUN: dict[str, Any] = {
    "task": {"name": "mine", "kind": "classification", "metric": "accuracy", "labels": 2},
    "data": {"fingerprint": "d", "notes": ["a note"], "sizes": {"train": 96, "dev": 40, "test": 0}},
    "backbone": {"name": "minilm", "layers": 6, "depth": 3},
    "settings": {"task": "mine.csv", "seed": 0, "max_length": None},
    "recipe": {
        "learning_rate": 1e-2,
        "batch_size": 8,
        "epochs": 3.0,
        "warmup_ratio": 0.1,
        "weight_decay": 0.01,
        "max_grad_norm": 1.0,
    },
    "versions": {"python": "3.11.7"},
    "hardware": {"cores": 2, "gpus": []},
    "table": {"method": "frequency", "num_layers": 3, "parameters": {"num_buckets": 3}, "fingerprint": "t"},
    "metrics": METRICS,
    "dense": {"folder": "out/dense", "layers": 3, **TRAINING, "metrics": METRICS},
    "candidates": [{"hash": "frequency", **TRAINING}],
    "macs": {
        "split": "dev",
        "texts": 40,
        "tokens": 300,
        "dense_per_text": 3.0,
        "paper_per_text": 2.0,
        "executed_per_text": 1.0,
        "speedup": 3.0,
        "paper_speedup": 1.5,
        "speedup_vs_bert_base": 90.0,
    },
    "history": [{"step": 1, "loss": 0.7}, {"step": 6, "score": 0.9}],
    "seconds": {"dense": 1.5, "tables": 0.1, "hashed": 1.5, "evaluation": 0.2, "total": 3.3},
}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"dense": None},
        {"dense": {"folder": "given", "layers": 12, "metrics": METRICS}},
        {"best_seed": 1, "seeds": [{"seed": 1, "metrics": METRICS}], "summary": {"dev": {}, "test": None}},
        {"passes": 6.0, "dense_equal": {"folder": "out/dense-equal", "layers": 3, **TRAINING, "metrics": METRICS}},
        {"search": {"grid": {"epochs": [3.0]}, "trials": []}},
        {"written_by_a_newer_version": [1, 2]},
    ],
)
def test_the_json_stays_as_it_is(changes: dict[str, Any]) -> None:
    record = RunRecord.from_dict(RUN | changes)
    assert json.dumps(record.to_dict(), sort_keys=True) == json.dumps(RUN | changes, sort_keys=True)
    assert record == RUN | changes, "it reads like the JSON"
    assert RunRecord.from_dict(record.to_dict()) == record


def test_entries_come_in_the_order_of_the_file() -> None:
    assert list(RunRecord.from_dict(RUN)) == list(RUN)
    assert json.dumps(RunRecord.from_dict(RUN).to_dict()) == json.dumps(RUN)


def test_fields_are_typed() -> None:
    record = RunRecord.from_dict(RUN)
    assert record.recipe.batch_size == 8
    assert record.dense is not None and record.dense.training == TrainingRecord(**TRAINING)  # type: ignore[arg-type]
    assert record.candidates[0].training.best_step == 6
    assert record.macs.speedup == record["macs"]["speedup"] == 3.0
    assert "summary" not in record and record.get("summary") is None
    assert replace(record, best_seed=3)["best_seed"] == 3


def test_an_older_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"settings": {"task": "sst2"}, "backbone": {"layers": 12}}))
    record = read_run(tmp_path)
    assert record is not None
    assert (record.backbone.layers, record.data.fingerprint, record.dense) == (12, None, None)


def test_speedups_of_an_older_file_are_read_by_their_meaning(tmp_path: Path) -> None:
    former = {name: value for name, value in RUN["macs"].items() if name != "paper_speedup"}
    former |= {"speedup": 1.5, "executed_speedup": 3.0}
    (tmp_path / "run.json").write_text(json.dumps(RUN | {"macs": former}))
    record = read_run(tmp_path)
    assert record is not None
    assert (record.macs.speedup, record.macs.paper_speedup) == (3.0, 1.5)
    assert record == RUN, "written again, it has today's names"


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"settings": {}, "dense": 3}', '{"settings": {}, "macs": null}']
)
def test_what_is_no_record_is_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(text)
    assert read_run(tmp_path) is None
    assert read_run(tmp_path / "nowhere") is None
