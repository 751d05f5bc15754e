"""A method is one class and one registration: what it builds, trains, predicts and costs is its own."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fitting_data import make_data
from transformers import AutoModelForSequenceClassification, BertForSequenceClassification

from hashee.data.run_record import MacsRecord
from hashee.data.tokenized import Tokenized
from hashee.errors import InputError
from hashee.hf.flops import count_flops
from hashee.training import fit
from hashee.training.evaluation import logits_for
from hashee.training.method import METHODS, method_named, register_method
from hashee.training.processes import current_processes
from hashee.training.stages import Candidate, Choice, Fit


class Truncated:
    """The first layers of the backbone, without exits."""

    name = "truncated"

    def train(self, fit: Fit) -> Choice:
        dense = fit.dense()
        assert dense.record is not None
        return Choice(fit, [Candidate("none", Path(dense.backbone.source), None, dense.record, 0.0)])

    def open(self, folder: Path) -> Any:
        return AutoModelForSequenceClassification.from_pretrained(folder).eval()

    def predict(self, model: Any, encoded: Tokenized, processes: Any) -> Any:
        return logits_for(model, encoded, processes)

    def macs(self, model: Any, encoded: Tokenized) -> Any:
        return np.array([count_flops(model.config, [row.tolist()]).full_depth_macs for row in encoded.ids])

    def cost(self, choice: Choice, model: Any, split: str, encoded: Tokenized) -> MacsRecord:
        ids = [row.tolist() for row in encoded.ids]
        full = count_flops(choice.fit.backbone.config, ids).full_depth_macs / len(ids)
        own = float(self.macs(model, encoded).mean())
        return MacsRecord(split, len(ids), dense_per_text=full, executed_per_text=own, speedup=full / own)


def test_another_method_is_one_registration(backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hashee.training.method.METHODS", dict(METHODS))
    register_method(Truncated())
    with pytest.raises(InputError, match="there is a method 'truncated' already"):
        register_method(Truncated())
    options: dict[str, Any] = {"backbone": str(backbone), "output": tmp_path / "out", "quiet": True}
    result = fit(task=make_data(), method="truncated", depth=2, hash="frequency", **options)
    assert type(result.model) is BertForSequenceClassification
    assert result.model.config.num_hidden_layers == 2
    assert result.run.macs.speedup == 1.5, "two of three layers"
    assert result.run.metrics["test"] is not None and result.run.metrics["test"]["score"] >= 0.9
    assert result.run.table.method == "truncated" and result.run.dense is None
    again = fit(output=tmp_path / "out", task=make_data(), resume=True, quiet=True)
    assert again.run == result.run, "what is finished is found again"


def test_each_prediction_has_its_cost(backbone: Path, tmp_path: Path) -> None:
    data, method = make_data(), method_named("hash-exits")
    options: dict[str, Any] = {"backbone": str(backbone), "output": tmp_path / "out", "quiet": True}
    result = fit(task=data, hash="frequency", warm_start=False, epochs=1, **options)
    assert data.test is not None
    encoded = Fit(settings=hash_settings(result.run.settings, data), data=data, processes=current_processes()).encoder(
        data.test
    )
    macs = method.macs(result.model, encoded)
    assert macs.shape == (len(data.test),) and macs.std() > 0
    assert macs.mean() == pytest.approx(result.run.macs.executed_per_text)
    logits = method.predict(result.model, encoded, current_processes())
    right = np.mean([row.argmax() == target for row, target in zip(logits, data.test.targets or (), strict=True)])
    assert result.run.metrics["test"] is not None and right == result.run.metrics["test"]["accuracy"]


def hash_settings(stored: dict[str, Any], data: Any) -> Any:
    from hashee.training import FitSettings

    return FitSettings(**(stored | {"task": data}))


def test_an_unknown_method_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown method 'magic'; choose from hash-exits"):
        fit(task=make_data(), output=tmp_path / "out", method="magic")
    assert not (tmp_path / "out").exists()
