"""Embedders and rerankers in one file, with pooling and what follows it inside the graph; embedders in int8."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hashee
from commands import hashee_command
from hashee.errors import UnsupportedModel
from hashee.export import export_onnx, load
from tiny_text_models import make_folder, make_pairs, make_texts

pytest.importorskip("onnxruntime")
st = pytest.importorskip("sentence_transformers")

TEXTS = make_texts(30)
TOLERANCE = 1e-5
WIDTH = 24


def make_embedder(folder: Path, *behind: Any, pooling: str = "mean") -> Any:
    """Return a SentenceTransformer with exits, pooled and followed by modules."""
    from sentence_transformers.sentence_transformer import modules

    encoder, _ = st.SentenceTransformer(str(make_folder(folder)), device="cpu").children()
    dense = st.SentenceTransformer(modules=[encoder, modules.Pooling(WIDTH, pooling), *behind], device="cpu")
    table = hashee.ExitTable.by_frequency(dense.tokenizer, TEXTS, num_layers=3)
    return hashee.convert(dense, table)


def make_modules(kind: str) -> list[Any]:
    from sentence_transformers.sentence_transformer import modules

    torch.manual_seed(1)
    return {
        "nothing": [],
        "normalize": [modules.Normalize()],
        "dense": [modules.Dense(WIDTH, 12), modules.Normalize()],
        "dense without bias, layer norm": [
            modules.Dense(WIDTH, 8, bias=False, activation_function=torch.nn.Identity()),
            modules.Dropout(0.5),
            modules.LayerNorm(8),
        ],
    }[kind]


@pytest.mark.parametrize("backend", ["onnx", "openvino"])
@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("kind", ["nothing", "normalize", "dense", "dense without bias, layer norm"])
def test_exported_embedders_say_what_the_client_says(kind: str, pooling: str, backend: str, tmp_path: Path) -> None:
    if backend == "openvino":
        pytest.importorskip("openvino")
    model = make_embedder(tmp_path / "encoder", *make_modules(kind), pooling=pooling)
    exported = load(export_onnx(model, tmp_path / "out"), backend)
    expected = model.encode(TEXTS)
    found = np.stack(list(exported.predict(TEXTS, progress=False)))
    assert found.shape == expected.shape and np.abs(found - expected).max() <= TOLERANCE
    assert exported.description["reads_first_row"] is (pooling == "cls")


def test_padding_and_empty_rows_do_not_count(tmp_path: Path) -> None:
    model = make_embedder(tmp_path / "encoder")
    exported = load(export_onnx(model, tmp_path / "out"))
    ids = np.array([[5, 6, 7, 0], [0, 0, 0, 0], [9, 8, 0, 0]])
    mask = np.array([[1, 1, 1, 0], [0, 0, 0, 0], [1, 1, 0, 0]])
    found = exported(ids, mask)["sentence_embedding"]
    assert np.array_equal(found[1], np.zeros_like(found[1]))
    alone = exported(ids[2:, :2], mask[2:, :2])["sentence_embedding"]
    assert np.abs(found[2:] - alone).max() <= TOLERANCE


def test_texts_are_cut_where_the_client_cuts_them(tmp_path: Path) -> None:
    model = make_embedder(tmp_path / "encoder")
    model.max_seq_length = 6
    exported = load(export_onnx(model, tmp_path / "out"))
    long = [" ".join(TEXTS[:4])]
    assert np.abs(next(iter(exported.predict(long, progress=False))) - model.encode(long)[0]).max() <= TOLERANCE


def test_rerankers_are_exported_with_their_tokenizer(tmp_path: Path) -> None:
    dense = st.CrossEncoder(str(make_folder(tmp_path / "scorer", scores=True)), device="cpu")
    model = hashee.convert(dense, hashee.ExitTable.by_frequency(dense.tokenizer, TEXTS, num_layers=3))
    exported = load(export_onnx(model, tmp_path / "out"))
    pairs = make_pairs(2, 3)
    expected = model.predict(pairs, activation_fn=torch.nn.Identity())
    assert np.abs(np.stack(list(exported.predict(pairs, progress=False)))[:, 0] - expected).max() <= TOLERANCE


def test_int8_embedders_stay_close(tmp_path: Path) -> None:
    model = make_embedder(tmp_path / "encoder", *make_modules("normalize"))
    expected = model.encode(TEXTS)
    exported = load(export_onnx(model, tmp_path / "out", int8=True))
    assert (np.stack(list(exported.predict(TEXTS, progress=False))) * expected).sum(axis=1).min() >= 0.98
    quantized = hashee.quantize(model)
    assert (quantized.encode(TEXTS) * expected).sum(axis=1).min() >= 0.98
    assert np.array_equal(model.encode(TEXTS), expected), "the float32 model is left alone"


def test_what_cannot_be_exported_is_named(tmp_path: Path) -> None:
    from sentence_transformers.sentence_transformer import modules

    with pytest.raises(UnsupportedModel, match="pooling max cannot be exported"):
        export_onnx(make_embedder(tmp_path / "one", pooling="max"), tmp_path / "out")
    with pytest.raises(UnsupportedModel, match="residual"):
        export_onnx(make_embedder(tmp_path / "two", modules.Dense(WIDTH, WIDTH, use_residual=True)), tmp_path / "out")
    encoder = make_folder(tmp_path / "dense")
    with pytest.raises(UnsupportedModel, match="not a converted model"):
        export_onnx(st.SentenceTransformer(str(encoder), device="cpu"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_folders_are_exported_and_scored_by_the_commands(tmp_path: Path) -> None:
    model = make_embedder(tmp_path / "encoder", *make_modules("normalize"))
    model.save_pretrained(str(tmp_path / "fast"))
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    hashee_command("export", "onnx", tmp_path / "fast", tmp_path / "exported")
    texts = tmp_path / "texts.txt"
    hashee_command("predict", tmp_path / "exported", texts, tmp_path / "onnx.jsonl", "--backend", "onnx")
    hashee_command("predict", tmp_path / "fast", texts, tmp_path / "int8.jsonl", "--quantize", "int8")
    expected = model.encode(TEXTS)
    for name, least in (("onnx", 1 - TOLERANCE), ("int8", 0.98)):
        lines = (tmp_path / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        found = np.array([json.loads(line)["embedding"] for line in lines])
        assert (found * expected).sum(axis=1).min() >= least
