"""hashee's own engines on the clock: int8 and the exported graphs give the outputs of the float32 engine."""

from pathlib import Path

import numpy as np
import pytest
from test_speed_run import save_tiny, tiny_workload

from hashee.bench import run, workloads
from hashee.bench.baselines import BASELINES
from hashee.bench.baselines import hashee_engines as engines
from hashee.bench.batches import Padded, cut, pad
from hashee.bench.protocol import Benchmark, ClockJob
from hashee.bench.run import run_benchmark


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> ClockJob:
    folder = tmp_path_factory.mktemp("speed")
    save_tiny(folder / "model")
    workload = tiny_workload("tiny", 2)
    workload.table.save(folder / "table")
    workload.tokens.save(folder / "texts.json")
    paths = {name: str(folder / name) for name in ("model", "table")}
    return ClockJob("hashee", 2, "sorted", 3, 1, str(folder / "texts.json"), artifacts=str(folder), **paths)


@pytest.fixture
def batches() -> list[Padded]:
    tokens = tiny_workload("tiny", 2).tokens
    return [pad(tokens, indices) for indices in cut(tokens, 3, "sorted")]


def test_int8_is_near_and_not_the_same(job: ClockJob, batches: list[Padded]) -> None:
    exact, rounded = engines.load(job), engines.load(job, int8=True)
    differences = [float(np.abs(exact(batch) - rounded(batch)).max()) for batch in batches]
    assert 0 < max(differences) <= 0.02


@pytest.mark.parametrize("load", [engines.load_onnx, engines.load_openvino])
def test_exported_graphs_give_the_outputs_of_the_engine(load: object, job: ClockJob, batches: list[Padded]) -> None:
    pytest.importorskip("onnxruntime" if load is engines.load_onnx else "openvino")
    engines.export(job)
    written = (engines.exported_folder(job) / "model.onnx").stat().st_mtime_ns
    exact, exported = engines.load(job), load(job)  # type: ignore[operator]
    for batch in batches:
        assert np.abs(exact(batch) - exported(batch)).max() <= 1e-5
    engines.export(job)
    assert (engines.exported_folder(job) / "model.onnx").stat().st_mtime_ns == written, "it was made twice"


def test_they_run_in_the_benchmark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("openvino")
    monkeypatch.setitem(workloads.MODELS, "test", save_tiny)
    monkeypatch.setattr(run, "load_workload", tiny_workload)
    monkeypatch.setattr(run, "SGEMM_SIZE", 128)
    names = ("hashee", "hashee int8", "hashee onnx", "hashee openvino")
    benchmark = Benchmark(workload="tiny", model="test", batch_sizes=(3,), baselines=names, rounds=1)
    (measured,) = run_benchmark(benchmark, tmp_path)
    rows = {row.name: row for row in measured}
    assert set(rows) == set(names) and not [row.skipped for row in measured if row.skipped]
    for name in names[1:]:
        assert rows[name].compared_with == "hashee" and rows[name].depth == 2
        assert rows[name].executed_flops_per_text == rows["hashee"].executed_flops_per_text
    assert max(rows[name].max_difference or 0.0 for name in ("hashee onnx", "hashee openvino")) <= 1e-5
    assert rows["hashee int8"].dtype == "int8" and 0 < (rows["hashee int8"].max_difference or 0.0) <= 0.02
    # Their processes carry neither torch nor transformers.
    assert not BASELINES["hashee onnx"].needs_torch
    assert (rows["hashee onnx"].peak_memory_mb or 0.0) < 0.7 * (rows["hashee"].peak_memory_mb or 0.0)
