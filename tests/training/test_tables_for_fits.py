"""Tables that a fit makes: for a speed-up, from before layer 1 where it must be, and by importance in one call."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fitting_data import make_data
from transformers import AutoConfig, AutoModelForSequenceClassification

from hashee import Budget, ExitTable, FitResult, InputError, TableError, count_flops, fit
from hashee.data import Kind
from hashee.errors import ImpossibleSpeedup
from hashee.tables import budget
from hashee.tables.importance import Shrinkage
from hashee.training import tables
from hashee.training.processes import current_processes
from hashee.training.settings import FitSettings
from hashee.training.stages import Fit
from hashee.training.tables import TableInputs, table_for


@pytest.fixture(scope="module")
def fitted(backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> FitResult:
    output = tmp_path_factory.mktemp("tables") / "out"
    return fit(task=make_data(), backbone=str(backbone), output=output, hash="frequency", quiet=True)


@pytest.fixture(scope="module")
def dense(fitted: FitResult) -> Any:
    return AutoModelForSequenceClassification.from_pretrained(fitted.folder / "dense")


def make_table(hash: str, backbone: Path, dense: Any, **changes: Any) -> tuple[ExitTable, Fit]:
    settings = FitSettings(task=make_data(), backbone=str(backbone), output=Path("unused"), **changes)
    of = Fit(settings, make_data(), current_processes())
    return table_for(hash, settings, TableInputs(of.data, of.train, of.dev, of.backbone), dense), of


@pytest.mark.parametrize("hash", ["frequency", "mi", "random"])
def test_tokens_exit_before_layer_1_only_if_the_speedup_needs_it(hash: str, backbone: Path, dense: Any) -> None:
    lowest = {}
    for speedup in (2.0, 5.0):
        table, of = make_table(hash, backbone, dense, speedup=speedup)
        lowest[speedup] = int(table.exit_layers.min())
        budget = Budget.of(speedup, dense, [row.tolist() for row in of.train.ids])
        assert budget.speedup_of(table.exit_layers.numpy(), 3, counted=False) == pytest.approx(speedup, rel=0.2)
    assert lowest == {2.0: 1, 5.0: 0}
    with pytest.raises(TableError, match="cannot be had"):
        make_table(hash, backbone, dense, speedup=5.0, min_exit=1)


def test_speedups_are_over_the_whole_backbone_also_where_layers_are_cut_off(backbone: Path) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(backbone, num_hidden_layers=2)
    with pytest.raises(ImpossibleSpeedup, match="a speed-up of 50x cannot be had") as refused:
        make_table("frequency", backbone, model, depth=2, speedup=50.0)
    highest = refused.value.highest
    table, of = make_table("frequency", backbone, model, depth=2, speedup=0.98 * highest)
    ids = [row.tolist() for row in of.train.ids]
    cost = count_flops(AutoConfig.from_pretrained(backbone), ids, table, reads_first_row=True)
    assert cost.speedup == pytest.approx(table.parameters["speedup"], rel=0.2) == 0.98 * highest


def test_importance_lets_tokens_exit_before_layer_1_unless_told_otherwise(backbone: Path, dense: Any) -> None:
    for speedup in (None, 2.0):
        for chosen, lowest in ((None, 0), (0, 0), (1, 1)):
            table, _ = make_table("importance", backbone, dense, speedup=speedup, min_exit=chosen)
            assert table.parameters["min_exit"] == lowest <= int(table.exit_layers.min())
    table, _ = make_table("importance", backbone, dense, speedup=5.0)
    assert int(table.exit_layers.min()) == 0
    with pytest.raises(TableError, match="cannot be had"):
        make_table("importance", backbone, dense, speedup=5.0, min_exit=1)


def test_importance_is_counted_on_dev_if_that_is_large(
    backbone: Path, dense: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, of = make_table("importance", backbone, dense, speedup=2.0)
    monkeypatch.setattr(budget, "_LEAST_HELD_OUT", len(of.dev))
    table, _ = make_table("importance", backbone, dense, speedup=2.0)
    assert table != before
    on_dev = Budget.of(2.0, dense, [row.tolist() for row in of.dev.ids], held_out=True)
    assert on_dev.speedup_of(table.exit_layers.numpy(), 3, counted=True) == pytest.approx(2.0, rel=0.02)
    assert ExitTable.by_importance(dense, of.data, speedup=2.0, progress=False) == table


def test_one_call_makes_the_table_that_a_fit_makes(backbone: Path, dense: Any) -> None:
    theirs, of = make_table("importance", backbone, dense, speedup=2.0, signed=True, pseudo_counts=3.0)
    rows = list(zip(of.data.train.texts, of.data.train.targets or (), strict=True))
    named = [(text, ("bad", "good")[label]) for text, label in rows]  # type: ignore[call-overload]
    shrinkage = Shrinkage(pseudo_counts=3.0)
    for data in (of.data, rows, named):
        table = ExitTable.by_importance(dense, data, speedup=2.0, signed=True, shrinkage=shrinkage, progress=False)
        assert table == theirs


def test_without_labels(backbone: Path, dense: Any) -> None:
    texts = list(make_data().train.texts)
    for signal in ("sampled", "answer", "distance", "angle"):
        table = ExitTable.by_importance(dense, texts, speedup=2.0, signal=signal, progress=False)
        theirs, _ = make_table("importance", backbone, dense, speedup=2.0, signal=signal)
        assert table.parameters["signal"] == signal
        assert np.array_equal(table.exit_layers, theirs.exit_layers)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "not a single text"),
        (["a film"], "(text, label) rows"),
        ([("a film", "great")], "knows no label 'great'; its labels are bad, good"),
        ([("a film", 2)], "knows no label 2"),
        ([("a film", 0.5)], "knows no label 0.5"),
        (make_data(Kind.TAGS), "tags are for words"),
    ],
)
def test_data_that_cannot_be_measured_on(data: Any, message: str, dense: Any) -> None:
    with pytest.raises(InputError) as error:
        ExitTable.by_importance(dense, data, speedup=2.0)
    assert message in str(error.value)


def test_importance_is_not_measured_on_a_model_of_another_depth(fitted: FitResult, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has 3 layers and depth is 2"):
        fit(
            task=make_data(),
            dense=fitted.folder / "dense",
            depth=2,
            hash="importance",
            output=tmp_path / "out",
            quiet=True,
        )


def test_importance_is_measured_once_for_each_dense_model(
    fitted: FitResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = []
    measure = tables.measure_importance
    monkeypatch.setattr(tables, "measure_importance", lambda *given, **o: measured.append(1) or measure(*given, **o))
    shared: dict[str, Any] = {
        "task": make_data(),
        "dense": fitted.folder / "dense",
        "hash": "importance",
        "quiet": True,
    }
    made = [fit(output=tmp_path / str(speedup), speedup=speedup, epochs=1, **shared).model for speedup in (2.0, 2.5)]
    assert len(measured) == 1
    assert made[0].exit_table != made[1].exit_table
    # Other examples: what is there is of no use.
    fit(output=tmp_path / "others", speedup=2.0, epochs=1, **(shared | {"task": make_data(train=64)}))
    assert len(measured) == 2
    (fitted.folder / "dense" / "importance-loss" / "importance.json").write_text("{")
    fit(output=tmp_path / "again", speedup=2.0, epochs=1, **(shared | {"task": make_data(train=64)}))
    assert len(measured) == 3


def test_importance_in_bfloat16_is_near_that_in_float32_and_kept_apart(
    backbone: Path, dense: Any, tmp_path: Path
) -> None:
    settings = FitSettings(task=make_data(), backbone=str(backbone), output=Path("unused"))
    of = Fit(settings, make_data(), current_processes())
    inputs = TableInputs(of.data, of.train, of.dev, of.backbone, tmp_path)
    exact, mixed = (replace(inputs, bf16=bf16).importance("loss", dense).absolute for bf16 in (False, True))
    assert not np.array_equal(exact, mixed), "what was measured in float32 does not serve for bfloat16"
    assert np.abs(exact - mixed).sum() < 0.05 * exact.sum()
