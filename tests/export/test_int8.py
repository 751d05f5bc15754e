"""Exports in int8: integers are really multiplied, every row has its own step, and answers stay near."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoModelForSequenceClassification
from transformers.activations import ACT2FN

from architectures import converted, make_exits, make_mask, make_model
from exported_models import make_batch, minilm_batch, truth
from hashee.cli import main
from hashee.errors import UnsupportedModel
from hashee.export import export_onnx, load
from hashee.export.activations import ACTIVATIONS
from hashee.export.graph import Graph
from hashee.export.products import ROW_LEVELS, Matrix, multiply

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")

FEW = ["bert", "albert", "mpnet", "roberta-prelayernorm"]


def product_of(rows: np.ndarray, weight: torch.Tensor, least: float | None = None) -> tuple[np.ndarray, Counter[str]]:
    """Return what ONNX Runtime makes of one int8 product, and the nodes that it ran."""
    graph = Graph(17, int8=True)
    bias = graph.weight(torch.arange(weight.shape[0], dtype=torch.float32), "bias")
    multiply(graph, "rows", Matrix(weight, "weight", (weight,), bias, least))
    helper, types = onnx.helper, onnx.TensorProto
    made = helper.make_graph(
        graph.nodes,
        "one product",
        [helper.make_tensor_value_info("rows", types.FLOAT, ["rows", weight.shape[1]])],
        [helper.make_tensor_value_info(graph.nodes[-1].output[0], types.FLOAT, ["rows", weight.shape[0]])],
        [onnx.numpy_helper.from_array(values, name) for name, values in graph.weights.items()],
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"rows": rows})[0], Counter(node.op_type for node in graph.nodes)


def by_hand(rows: np.ndarray, weight: np.ndarray, zero: int, smallest: float = 0.0) -> np.ndarray:
    """Round rows and channels to their own steps, then multiply in double precision."""
    largest = np.maximum(np.abs(rows).max(axis=1, keepdims=True), smallest).astype(np.float64)
    integers = np.clip(np.rint(rows / largest * (ROW_LEVELS - zero)), -zero, ROW_LEVELS - zero)
    steps = np.abs(weight).max(axis=1) / 127
    channels = np.rint(weight / steps[:, None]).astype(np.int64)
    product = integers.astype(np.int64) @ channels.T
    return product * largest / (ROW_LEVELS - zero) * steps + np.arange(len(weight))


def test_a_product_is_that_of_integers_with_a_step_for_each_row_and_channel() -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(24, 64, generator=generator) * torch.logspace(-2, 1, 24)[:, None]
    rows = (torch.randn(9, 64, generator=generator) * torch.logspace(-3, 3, 9)[:, None]).numpy()
    found, _ = product_of(rows, weight)
    expected = by_hand(rows, weight.numpy(), zero=64)
    # Rounding of halves in float32 may fall the other way, which moves a product by one step.
    assert np.abs(found - expected).max() <= 1e-3 * np.abs(expected).max()
    assert np.abs(found - expected).mean() <= 1e-6 * np.abs(expected).mean()


def test_rows_of_an_activation_spend_their_integers_above_zero() -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(24, 64, generator=generator)
    rows = nn.functional.gelu(2 * torch.randn(200, 64, generator=generator))
    exact = (rows @ weight.T).numpy() + np.arange(24)
    bounded, _ = product_of(rows.numpy(), weight, least=-0.1701)
    unbounded, _ = product_of(rows.numpy(), weight)
    assert np.abs(bounded - exact).mean() < 0.75 * np.abs(unbounded - exact).mean()
    assert np.abs(bounded - by_hand(rows.numpy(), weight.numpy(), 15, 0.1701 * 112 / 15)).mean() < 1e-4


def test_rows_of_zeros_stay_zeros() -> None:
    found, _ = product_of(np.zeros((3, 8), dtype=np.float32), torch.randn(4, 8))
    assert np.abs(found - np.arange(4)).max() <= 1e-6


@pytest.mark.parametrize("name", sorted(name for name, known in ACTIVATIONS.items() if known.least is not None))
def test_activations_never_fall_below_what_is_said_of_them(name: str) -> None:
    known = [nn.SiLU(), *(ACT2FN[key] for key in ACT2FN if key.startswith(("gelu", "relu", "si", "quick")))]
    module = next(module for module in known if type(module).__name__ == name)
    lowest = float(module(torch.linspace(-20, 20, 400_001)).min())
    assert ACTIVATIONS[name].least is not None and -1e-3 <= lowest - ACTIVATIONS[name].least <= 0.01


@pytest.mark.parametrize("family", FEW)
def test_answers_stay_near_the_models(family: str, tmp_path: Path) -> None:
    model = converted(make_model(family, AutoModelForSequenceClassification), make_exits("exits at 0"))
    exported = load(export_onnx(model, tmp_path / "out", int8=True))
    mask = make_mask("holes")
    mask[:, 0] = 1
    batch = make_batch(model, mask)
    found, expected = exported(**batch)["logits"], truth(model, batch)["logits"].numpy()
    assert 0 < np.abs(found - expected).max() <= 0.1 * np.abs(expected).max()


def test_integers_are_multiplied_in_onnx_runtime(minilm: Any, tmp_path: Path) -> None:
    folder = export_onnx(minilm, tmp_path / "out", int8=True)
    options = runtime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 3
    runtime.InferenceSession(folder / "model.onnx", options, providers=["CPUExecutionProvider"])
    nodes = list(onnx.load(tmp_path / "optimized.onnx").graph.node)
    branches = [node for each in nodes if each.op_type == "If" for part in each.attribute for node in part.g.node]
    run = Counter(node.op_type for node in (*nodes, *branches))
    layers = minilm.config.num_hidden_layers
    # Query, output, expand and contract of every layer, and keys and values in the branch that projects them.
    assert run["MatMulIntegerToFloat"] + run["MatMulInteger"] == 5 * layers, run


@pytest.mark.parametrize("backend", ["onnx", "openvino"])
def test_real_answers_stay_near_and_do_not_depend_on_neighbours(
    backend: str, minilm: Any, minilm_export: Path, tmp_path: Path
) -> None:
    pytest.importorskip("openvino" if backend == "openvino" else "onnxruntime")
    small = export_onnx(minilm, tmp_path / "int8", int8=True)
    exported = load(small, backend, threads=1)
    assert exported.description["precision"] == "int8"
    batch = minilm_batch(minilm)
    found, expected = exported(**batch)["logits"], truth(minilm, batch)["logits"].numpy()
    assert 0 < np.abs(found - expected).max() <= 0.1 * np.ptp(expected)
    alone = exported(**{name: values[:1] for name, values in batch.items()})["logits"]
    # Which form of attention is the cheaper one depends on the batch, and one of them is not in int8.
    assert np.abs(alone - found[:1]).max() <= 0.05 * np.ptp(expected)
    sizes = [(folder / "model.onnx").stat().st_size for folder in (small, minilm_export)]
    assert sizes[0] < 0.7 * sizes[1]


def test_the_command_writes_int8(minilm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    minilm.save_pretrained(tmp_path / "model")
    minilm.tokenizer.save_pretrained(tmp_path / "model")
    command = ["hashee", "export", "onnx", str(tmp_path / "model"), str(tmp_path / "out"), "--int8"]
    monkeypatch.setattr("sys.argv", command)
    with pytest.raises(SystemExit, match="0"):
        main()
    assert load(tmp_path / "out").description["precision"] == "int8"


def test_a_graph_that_a_runtime_gets_wrong_is_not_put_in_place(
    minilm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whatever is below zero is lost.
    monkeypatch.setattr("hashee.export.products._zero_of", lambda least: (0, 1e-12))
    with pytest.raises(UnsupportedModel, match="differs from the model's"):
        export_onnx(minilm, tmp_path / "out", int8=True)
    assert not (tmp_path / "out").exists()
