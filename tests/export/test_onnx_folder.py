"""The folder that an export writes, and what is refused before or after."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForMultipleChoice,
    AutoModelForSequenceClassification,
)

import hashee
from architectures import (
    SEQ2SEQ,
    VOCABULARY,
    converted,
    make_exits,
    make_ids,
    make_mask,
    make_model,
)
from exported_models import TOLERANCE, distance, make_batch, make_bert, truth
from hashee.errors import CheckpointError
from hashee.export import OnnxModel, activations, export_onnx, load
from hashee.export import onnx as exporter

pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")


def test_an_export_that_is_opened_as_a_model_is_told_apart(minilm_export: Path) -> None:
    with pytest.raises(CheckpointError, match="exported model, which runs on the backend onnx or openvino"):
        hashee.load(minilm_export)


def test_folder_holds_what_its_description_says(minilm: Any, minilm_export: Path) -> None:
    description = json.loads((minilm_export / "hashee_onnx.json").read_text())
    assert description["format"] == 1
    assert description["outputs"] == {"logits": ["batch", 2]}
    assert description["table_fingerprint"] == minilm.exit_table.fingerprint
    assert description["libraries"]["hashee"] == hashee.__version__
    names = {path.name for path in minilm_export.iterdir()}
    assert names >= {"model.onnx", "config.json", "tokenizer.json", "tokenizer_config.json"}
    assert json.loads((minilm_export / "config.json").read_text())["hashee"]["table"]["method"] == "frequency"


def test_large_weights_go_into_a_file_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_bert()
    monkeypatch.setattr(exporter, "LARGEST_FILE", 0)
    folder = export_onnx(model, tmp_path / "out")
    assert (folder / "model.onnx.data").stat().st_size > 1000
    batch = make_batch(model, make_mask("mixed lengths"))
    assert distance(model, load(folder), batch) <= TOLERANCE
    assert distance(model, load(folder, "openvino"), batch) <= TOLERANCE
    monkeypatch.undo()
    export_onnx(model, folder)
    assert not (folder / "model.onnx.data").exists()
    assert distance(model, load(folder), batch) <= TOLERANCE


def test_failed_export_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_bert()
    folder = export_onnx(model, tmp_path / "old")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    # A graph with other outputs is detected before the folder is moved into place.
    monkeypatch.setitem(activations.ACTIVATIONS, "GELUActivation", activations.ACTIVATIONS["ReLU"])
    for name in ("old", "new"):
        with pytest.raises(hashee.UnsupportedModel, match="differs from the model's"):
            export_onnx(model, tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_foreign_files_in_the_folder_stay(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    export_onnx(make_bert(), tmp_path / "out")
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"
    assert load(tmp_path / "out").inputs


@pytest.mark.parametrize("family", [*SEQ2SEQ, "modernbert"])
def test_families_that_are_not_covered_are_refused(family: str, tmp_path: Path) -> None:
    model = converted(make_model(family), make_exits("random exits"))
    with pytest.raises(hashee.UnsupportedModel, match=f"{family} models cannot be exported"):
        export_onnx(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_other_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(hashee.UnsupportedModel, match="MultipleChoice"):
        export_onnx(make_bert(AutoModelForMultipleChoice), tmp_path / "out")
    with pytest.raises(hashee.UnsupportedModel, match="not a converted model"):
        export_onnx(make_model("bert"), tmp_path / "out")
    with pytest.raises(hashee.UnsupportedModel, match="activation"):
        export_onnx(make_bert(hidden_act="mish"), tmp_path / "out")
    wrapped = make_bert()
    wrapped.encoder.layer[0].intermediate.dense = torch.nn.Sequential(wrapped.encoder.layer[0].intermediate.dense)
    with pytest.raises(hashee.UnsupportedModel, match="merge_and_unload"):
        export_onnx(wrapped, tmp_path / "out")
    with pytest.raises(hashee.HasheeError, match="opset 11"):
        export_onnx(make_bert(), tmp_path / "out", opset=11)
    assert not list(tmp_path.iterdir())


def test_foreign_tokenizer_is_refused(minilm: Any, tmp_path: Path, tokenizer: Any) -> None:
    with pytest.raises(hashee.TableMismatch):
        export_onnx(minilm, tmp_path / "out", tokenizer=tokenizer)


def test_bad_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(hashee.CheckpointError, match=r"hashee_onnx\.json"):
        load(tmp_path)
    folder = export_onnx(make_bert(), tmp_path / "out")
    with pytest.raises(hashee.HasheeError, match="choose from onnx, openvino"):
        load(folder, "tensorrt")
    with pytest.raises(hashee.HasheeError, match="no tokenizer"):
        _ = load(folder).tokenizer
    with pytest.raises(hashee.InputError, match="threads is 0"):
        load(folder, threads=0)
    for text in ('{"format": 99}', "{"):
        (folder / "hashee_onnx.json").write_text(text)
        with pytest.raises(hashee.CheckpointError, match="export the model again"):
            load(folder)
    with pytest.raises(hashee.HasheeError, match="is a file"):
        export_onnx(make_bert(), folder / "config.json")


@pytest.mark.parametrize(("package", "backend"), [("onnxruntime", "onnx"), ("openvino", "openvino")])
def test_missing_packages_are_named(
    package: str, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = export_onnx(make_bert(), tmp_path / "out")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(hashee.HasheeError, match=rf'pip install "hashee\[{backend}\]"'):
        load(folder, backend)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(hashee.HasheeError, match=r'pip install "hashee\[onnx\]"'):
        export_onnx(make_bert(), tmp_path / "other")


def test_bad_input_is_refused(tmp_path: Path) -> None:
    model = make_bert(AutoModelForSequenceClassification)
    exported = load(export_onnx(model, tmp_path / "out"))
    assert isinstance(exported, OnnxModel)
    ids, mask = make_ids().numpy(), make_mask("mixed lengths").numpy()
    for arrays, message in (
        ((ids[0], mask[0]), r"integers of \(batch, length\)"),
        ((ids.astype(float), mask), "not float64"),
        ((ids, mask[:, 1:]), r"attention_mask is \(5, 11\)"),
        ((ids[:0], mask[:0]), "at least one position"),
        ((ids, mask * 2), "zeros and ones"),
        ((ids + VOCABULARY, mask), "token id"),
        ((np.tile(ids, 4), np.tile(mask, 4) | 1), "position 40 is outside"),
        ((ids, mask, mask * 7), "token type 7"),
        ((ids, mask[:, ::-1]), "padding in row 1"),
    ):
        with pytest.raises(hashee.InputError, match=message):
            exported(*arrays)


def test_graph_itself_returns_nan_where_the_first_position_is_padding(tmp_path: Path) -> None:
    model = make_bert(AutoModelForSequenceClassification)
    folder = export_onnx(model, tmp_path / "out")
    batch = make_batch(model, make_mask("mixed lengths"))
    wanted = truth(model, batch).logits.numpy()
    batch["attention_mask"][2] = 0
    batch["token_type_ids"] = torch.zeros_like(batch["input_ids"])
    session = runtime.InferenceSession(folder / "model.onnx")
    logits = session.run(["logits"], {name: values.numpy() for name, values in batch.items()})[0]
    assert np.isnan(logits[2]).all()
    assert np.abs(np.delete(logits - wanted, 2, axis=0)).max() <= TOLERANCE
