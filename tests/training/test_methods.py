"""A method is one class and one registration: what it builds, trains, predicts and costs is its own."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fitting_data import make_data
from torch import Tensor
from transformers import AutoModelForSequenceClassification, BertForSequenceClassification

from hashee.data import Task
from hashee.data.tokenized import Tokenized
from hashee.errors import InputError
from hashee.hf.flops import costs_of
from hashee.tables.table import ExitTable
from hashee.training import fit
from hashee.training.evaluation import Predictions, logits_for
from hashee.training.method import METHODS, method_named, register_method
from hashee.training.processes import Processes, current_processes
from hashee.training.stages import Candidate, Choice, Fit


class Truncated:
    """The first layers of the backbone, without exits."""

    name = "truncated"
    knob = "layers"

    def refusal(self, task: Task) -> str | None:
        return "truncated is for single texts" if task.pair else None

    def train(self, fit: Fit) -> Choice:
        dense = fit.dense()
        assert dense.record is not None
        return Choice(fit, [Candidate("none", Path(dense.backbone.source), None, dense.record, 0.0, dense.passes)])

    def open(self, folder: Path) -> Any:
        return AutoModelForSequenceClassification.from_pretrained(folder).eval()

    def knobs(self, model: Any) -> Sequence[float]:
        return (float(model.config.num_hidden_layers),)

    def run(self, model: Any, inputs: Mapping[str, Tensor], knob: float) -> Tensor:
        return model(**inputs).logits  # type: ignore[no-any-return]

    def predict(self, model: Any, tokenized: Tokenized, processes: Processes, knob: float) -> Predictions:
        never = ExitTable.never(model.config.vocab_size, int(knob))
        costs = costs_of(model.config, never, [row.tolist() for row in tokenized.ids], reads_first_row=False)
        return Predictions(logits_for(model, tokenized, processes), costs)

    def sweep(
        self, model: Any, tokenized: Tokenized, processes: Processes, knobs: Sequence[float]
    ) -> list[Predictions]:
        return [self.predict(model, tokenized, processes, knob) for knob in knobs]


@pytest.fixture
def truncated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hashee.training.method.METHODS", dict(METHODS))
    register_method(Truncated())


@pytest.mark.usefixtures("truncated")
def test_another_method_is_one_registration(backbone: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is a method 'truncated' already"):
        register_method(Truncated())
    options: dict[str, Any] = {"backbone": str(backbone), "output": tmp_path / "out", "epochs": 5, "quiet": True}
    result = fit(task=make_data(), method="truncated", depth=2, hash="frequency", **options)
    assert type(result.model) is BertForSequenceClassification
    assert result.model.config.num_hidden_layers == 2
    assert result.run.macs.paper_speedup == 1.5, "two of three layers"
    assert result.run.metrics["test"] is not None and result.run.metrics["test"]["score"] >= 0.9
    assert result.run.table.method == "truncated" and result.run.dense is None
    assert result.run.passes == result.run.recipe.epochs
    again = fit(output=tmp_path / "out", task=make_data(), resume=True, quiet=True)
    assert again.run == result.run, "what is finished is found again"


@pytest.mark.usefixtures("truncated")
def test_a_method_may_refuse_a_task(backbone: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="truncated is for single texts"):
        fit(task=make_data(pair=True), method="truncated", backbone=str(backbone), output=tmp_path / "out", quiet=True)


def test_each_prediction_has_its_cost(backbone: Path, tmp_path: Path) -> None:
    data, method = make_data(), method_named("hash-exits")
    options: dict[str, Any] = {"backbone": str(backbone), "output": tmp_path / "out", "quiet": True}
    result = fit(task=data, hash="frequency", warm_start=False, epochs=1, **options)
    assert data.test is not None
    settings = hash_settings(result.run.settings, data)
    tokenized = Fit(settings=settings, data=data, processes=current_processes()).encoder(data.test)
    found = method.predict(result.model, tokenized, current_processes(), method.knobs(result.model)[0])
    assert found.costs.executed.shape == (len(data.test),) and found.costs.executed.std() > 0
    assert found.costs.executed.mean() == pytest.approx(result.run.macs.executed_per_text)
    assert found.costs.paper.mean() == pytest.approx(result.run.macs.paper_per_text)
    right = np.mean([row.argmax() == target for row, target in zip(found.logits, data.test.targets or (), strict=True)])
    assert result.run.metrics["test"] is not None and right == result.run.metrics["test"]["accuracy"]


def hash_settings(stored: dict[str, Any], data: Any) -> Any:
    from hashee.training import FitSettings

    return FitSettings(**(stored | {"task": data}))


def test_an_unknown_method_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown method 'magic'; choose from hash-exits"):
        fit(task=make_data(), output=tmp_path / "out", method="magic")
    assert not (tmp_path / "out").exists()
