"""`--compare-dense` fits a dense model for as many passes as the other had in all, and what is printed says so."""

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fitting_data import make_data
from rich.console import Console

from hashee.cli.fit import summary
from hashee.data.run_record import RunRecord
from hashee.errors import InputError
from hashee.evaluation import evaluate
from hashee.training import FitResult, FitSettings, fit
from hashee.training.stage import passes_in


def quick(output: Path, backbone: Path, **changes: Any) -> FitResult:
    fields: dict[str, Any] = {"task": make_data(), "hash": "frequency", "epochs": 1, "quiet": True}
    return fit(**(fields | {"output": output, "backbone": str(backbone)} | changes))


def shown(run: RunRecord, width: int = 160) -> str:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    with console.capture() as capture:
        console.print(summary(run, Path("out")))
    return capture.get()


@pytest.fixture(scope="module")
def compared(backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> FitResult:
    return quick(tmp_path_factory.mktemp("compared") / "out", backbone, compare_dense=True)


def row_of(page: str, name: str) -> list[str]:
    (line,) = (line for line in page.splitlines() if line.startswith(f"│ {name} "))
    return [cell.strip() for cell in line.strip("│").split("│")]


def test_the_dense_model_has_as_many_passes_and_steps(compared: FitResult) -> None:
    run = json.loads((compared.folder / "run.json").read_text())
    assert (run["passes"], run["dense"]["passes"], run["dense_equal"]["passes"]) == (2.0, 1.0, 2.0)
    assert run["dense_equal"]["steps"] == run["dense"]["steps"] + run["candidates"][0]["steps"]
    assert run["dense_equal"]["folder"] == str(compared.folder / "dense-equal")
    assert {path.name for path in compared.folder.iterdir() if path.is_dir()} == {"dense", "dense-equal"}
    assert compared.run == run


def test_the_table_shows_the_passes_of_each_row(compared: FitResult) -> None:
    page = shown(compared.run)
    dense, equal = compared.run.dense, compared.run.dense_equal
    assert dense is not None and equal is not None and equal.metrics["test"] is not None
    assert row_of(page, "dense")[1] == "1" and row_of(page, "by frequency")[1] == "2"
    assert row_of(page, "dense, as many passes")[1:4:2] == ["2", f"{equal.metrics['test']['score']:.4f}"]
    said = "had half the passes over the training examples; compare with the row below it"
    assert said in " ".join(page.split()), "the caption goes on in a second line"
    alone = " ".join(shown(replace(compared.run, dense_equal=None)).split())
    assert "as many passes" not in alone and "half the passes" in alone and "--compare-dense fits one" in alone
    other = shown(replace(compared.run, dense_equal=None, passes=3.0))
    assert "had 1 of 3 passes" in other
    unknown = shown(replace(compared.run, dense_equal=None, passes=None))
    assert row_of(unknown, "by frequency")[1] == "unknown" and "is not known" in unknown
    fair = shown(replace(compared.run, dense=equal, dense_equal=equal))
    assert "half" not in fair and "as many" not in fair


def test_an_evaluation_compares_with_it(compared: FitResult) -> None:
    found = evaluate(compared.folder, make_data(), rounds=0, quiet=True)
    assert compared.run.dense_equal is not None and found.dense is not None
    assert found.dense.quality == compared.run.dense_equal.metrics["test"]
    assert found.equal_passes and found.quality_kept is not None


def test_a_finished_run_can_still_be_compared(compared: FitResult, backbone: Path, tmp_path: Path) -> None:
    before = quick(tmp_path / "out", backbone)
    assert before.run.dense_equal is None and not (tmp_path / "out" / "dense-equal").exists()
    weights = (tmp_path / "out" / "model.safetensors").stat().st_mtime_ns
    after = fit(output=tmp_path / "out", task=make_data(), resume=True, compare_dense=True)
    assert after.run.dense_equal is not None and compared.run.dense_equal is not None
    assert after.run.dense_equal.metrics == compared.run.dense_equal.metrics
    assert (tmp_path / "out" / "model.safetensors").stat().st_mtime_ns == weights, "the model itself is not touched"
    assert json.loads((tmp_path / "out" / "run.json").read_text()) == after.run
    assert not (tmp_path / "out" / "work").exists()
    again = fit(output=tmp_path / "out", task=make_data(), resume=True)
    assert again.run == after.run, "what was compared stays so"


def test_a_comparison_that_was_interrupted_goes_on(
    backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hashee.training.stages import Fit

    with monkeypatch.context() as patch:
        patch.setattr(Fit, "dense_equal", lambda self, passes: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            quick(tmp_path / "out", backbone, compare_dense=True)
    hashed = (tmp_path / "out" / "model.safetensors").stat().st_mtime_ns
    run = fit(output=tmp_path / "out", task=make_data(), resume=True).run
    assert run.dense_equal is not None and run.dense_equal.passes == 2.0
    assert (tmp_path / "out" / "model.safetensors").stat().st_mtime_ns == hashed


def test_every_seed_is_compared(backbone: Path, tmp_path: Path) -> None:
    fields: dict[str, Any] = {"seeds": 2, "warm_start": False}
    quick(tmp_path / "out", backbone, **fields)
    run = quick(tmp_path / "out", backbone, resume=True, compare_dense=True, **fields).run
    assert run.dense_equal is not None and run.dense_equal.passes == run.passes == 1.0, "it had one stage"
    for seed in (0, 1):
        own = json.loads((tmp_path / "out" / f"seed-{seed}" / "run.json").read_text())
        assert own["dense_equal"]["passes"] == 1.0


def test_a_dense_model_of_equal_passes_is_not_fitted_twice(backbone: Path, tmp_path: Path) -> None:
    run = quick(tmp_path / "out", backbone, hash="importance", warm_start=False, compare_dense=True).run
    assert run.dense is not None and run.dense_equal == run.dense and run.dense.passes == run.passes == 1.0
    assert not (tmp_path / "out" / "dense-equal").exists()


def test_passes_of_a_dense_model_that_was_fitted_to_the_same_data_are_known(
    compared: FitResult, backbone: Path, tmp_path: Path
) -> None:
    dense = compared.folder / "dense"
    run = quick(tmp_path / "out", backbone, dense=dense).run
    assert run.dense is not None and (run.dense.passes, run.passes) == (1.0, 2.0)
    assert passes_in(dense, "other data") is None and passes_in(backbone, make_data().fingerprint) is None
    changed = json.loads((dense / "stage.json").read_text())
    changed["files"]["config.json"] = "of another model"
    (tmp_path / "stage.json").write_text(json.dumps(changed))
    assert passes_in(tmp_path, make_data().fingerprint) is None
    with pytest.raises(InputError, match=r"nobody knows what .* was fitted from; leave out dense"):
        FitSettings(task="x.csv", output=tmp_path, dense=dense, compare_dense=True)
