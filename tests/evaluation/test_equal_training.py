"""A share of quality is only given against a dense model of equal training; page, report and JSON say how it was."""

import json
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from evaluating_data import make_task, save_dense, save_hashed

from hashee.evaluation import Evaluation, evaluate
from hashee.evaluation.report import html_report
from hashee.evaluation.terminal import summary_lines

KEPT = "of its quality is kept"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with exits, and the dense models that a fit would leave in its folder, one of which is like no other."""
    folder = save_hashed(tmp_path_factory.mktemp("models") / "fitted")
    save_dense(folder / "dense", seed=3)
    save_dense(folder / "dense-equal", seed=4)
    save_dense(folder.parent / "given", seed=5)
    return folder


def evaluated(folder: Path, run: dict[str, Any] | None, **changes: Any) -> Evaluation:
    """Evaluate a folder whose fit recorded some passes."""
    (folder / "run.json").unlink(missing_ok=True)
    if run is not None:
        (folder / "run.json").write_text(json.dumps({"settings": {}} | run))
    return evaluate(folder, make_task(), rounds=0, quiet=True, **changes)


def said(found: Evaluation) -> str:
    """Return what the page says, having checked that the report and the JSON say the same."""
    lines = "\n".join(summary_lines(found))
    report, values = unescape(html_report(found)), found.to_dict()
    for line in lines.splitlines():
        assert line in report
    assert (f"% {KEPT}" in lines) == ("% of the dense model's" in report) == (values["quality_kept"] is not None)
    assert values["quality_kept_reason"] == found.quality_kept_reason and values["equal_passes"] is found.equal_passes
    if found.quality_kept is None:
        assert found.quality_kept_reason is not None and found.quality_kept_reason in lines
    return lines


def dense(folder: Path, passes: float | None) -> dict[str, Any]:
    return {"folder": str(folder), "layers": 4} | ({} if passes is None else {"passes": passes})


def test_equal_training_is_compared(models: Path) -> None:
    run = {"passes": 6.0, "dense": dense(models / "dense", 3.0), "dense_equal": dense(models / "dense-equal", 6.0)}
    found = evaluated(models, run)
    assert found.dense is not None and found.dense.quality is not None and found.quality is not None
    assert Path(found.dense.source).name == "dense-equal"
    assert found.quality_kept == found.quality["score"] / found.dense.quality["score"]
    assert f"{KEPT}; both had 6 passes over the training examples" in said(found)
    assert (found.to_dict()["model"]["passes"], found.to_dict()["dense"]["passes"]) == (6.0, 6.0)
    moved = run | {"dense_equal": dense(Path("/gone/dense-equal"), 6.0)}
    assert evaluated(models, moved).dense == found.dense, "a folder that was moved has it still"


def test_a_dense_model_of_equal_passes_needs_no_second_one(models: Path) -> None:
    found = evaluated(models, {"passes": 3.0, "dense": dense(models / "dense", 3.0)})
    assert found.dense is not None and Path(found.dense.source).name == "dense", "what lies there is of another run"
    assert f"{KEPT}; both had 3 passes" in said(found)


def test_unequal_training_is_not_compared(models: Path) -> None:
    run = {"passes": 6.0, "dense": dense(models / "dense", 3.0)}
    for named in ({}, {"dense": models / "dense"}):
        found = evaluated(models, run, **named)
        assert found.dense is not None and found.dense.quality is not None and found.score is not None
        assert found.equal_passes is False and found.quality_kept is None
        lines = said(found)
        scores = (
            f"accuracy {found.score:.4f} after 6 passes, of the dense model {found.dense.quality['score']:.4f} after 3"
        )
        assert scores in lines and "agreement with the dense model" in lines
        assert "had fewer passes over the training examples" in lines and "--compare-dense makes them equal" in lines


def test_of_a_dense_model_that_is_given_nothing_is_known(models: Path) -> None:
    for run in (None, {"passes": 6.0, "dense": dense(models / "dense", 3.0)}):
        found = evaluated(models, run, dense=models.parent / "given")
        assert found.dense is not None and found.dense.given and found.equal_passes is None
        assert f"{KEPT}; nothing is known of how long it was trained" in said(found)
        assert "of whose training nothing is known" in html_report(found)


@pytest.mark.parametrize("run", [None, {}, {"passes": 6.0}, {"dense": "DENSE"}])
def test_what_an_older_fit_left_is_not_compared(run: dict[str, Any] | None, models: Path) -> None:
    if run is not None and "dense" in run:
        run = {"dense": dense(models / "dense", None)}
    found = evaluated(models, run)
    assert found.dense is not None and not found.dense.given and found.quality_kept is None
    assert "each model had is not known" in said(found)


def test_passes_are_rows_of_both_tables_where_they_are_known(models: Path) -> None:
    found = evaluated(models, {"passes": 6.0, "dense": dense(models / "dense", 3.0)})
    (line,) = (line for line in str(found).splitlines() if "passes over train " in line)
    assert [cell.strip() for cell in line.split("│")[2:4]] == ["6", "3"]
    assert "passes over the training examples</td>" in html_report(found)
    unknown = evaluated(models, None, dense=None)
    assert "passes" not in str(unknown) and "passes" not in html_report(unknown)
