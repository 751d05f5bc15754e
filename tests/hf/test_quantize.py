"""int8 models answer nearly as float32 ones do, keep the exits, and say no where they would be wrong."""

import copy
import gc
import pickle
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

import hashee
from architectures import FAMILIES, LAYERS, converted, make_exits, make_ids, make_mask, make_model, padded, targets
from hashee.embedded import minilm_folder, rotten_tomatoes
from hashee.engine import native
from hashee.engine.int8 import STEPS, Int8Linear
from hashee.engine.native import int8
from hashee.errors import HasheeError, UnsupportedModel, UnsupportedOption
from hashee.export import export_onnx
from hashee.hf.quantize import quantize
from which_kernels import relative_error, states_of

pytestmark = pytest.mark.skipif(
    "fbgemm" not in torch.backends.quantized.supported_engines, reason="this processor has no int8 kernels"
)


def make_linear(inputs: int = 48, outputs: int = 40, seed: int = 0, bias: bool = True) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(inputs, outputs, bias=bias).requires_grad_(False)


def make_rows(rows: int = 6, width: int = 48) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(1))


def inputs_for(model: Any, kind: str = "right") -> dict[str, Tensor]:
    mask = make_mask(kind)
    ids = padded(make_ids(), mask, model.config)
    return {"input_ids": ids, "attention_mask": mask, **targets(model, ids)}


def int8_names(model: Any) -> set[str]:
    return {name for name, module in model.hashed_encoder.named_modules() if isinstance(module, Int8Linear)}


# One layer; with 48 outputs our kernels run it, with 40 torch's


def row_steps(layer: Int8Linear) -> int:
    return int8.steps() if layer.runs_in_kernels(make_rows()) else STEPS


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("outputs", [40, 48])
@pytest.mark.parametrize("count", [1, 3, 7, 100])
def test_a_layer_rounds_weights_and_rows_as_it_says(bias: bool, outputs: int, count: int) -> None:
    linear, rows = make_linear(bias=bias, outputs=outputs), make_rows(count)
    steps = row_steps(Int8Linear(linear))
    step = linear.weight.abs().amax(1, keepdim=True) / STEPS
    weight = (linear.weight / step).round() * step
    least = rows.amin(1, keepdim=True)
    reach = rows.amax(1, keepdim=True) - least
    rounded = ((rows - least) / reach * steps).round() / steps * reach + least
    expected = nn.functional.linear(rounded.double(), weight.double(), linear.bias.double() if bias else None)
    assert relative_error(Int8Linear(linear)(rows), expected) <= 1e-5
    assert relative_error(Int8Linear(linear)(rows), linear(rows)) <= 0.02


@pytest.mark.parametrize("outputs", [8, 16])
def test_the_kernel_does_not_overflow(outputs: int) -> None:
    # Two products of the largest steps are added in 16 bits on processors without VNNI.
    linear = make_linear(256, outputs)
    linear.weight.fill_(1.0)
    rows = torch.ones(2, 256)
    rows[:, 0] = 0.0
    assert torch.allclose(Int8Linear(linear)(rows), linear(rows), rtol=1e-5)


@pytest.mark.parametrize("outputs", [40, 48])
def test_a_row_does_not_depend_on_its_neighbours(outputs: int) -> None:
    layer, rows = Int8Linear(make_linear(outputs=outputs)), make_rows()
    loud = torch.cat([rows, 1000 * make_rows(3)])
    assert torch.equal(layer(loud)[: len(rows)], layer(rows))
    for number in range(len(rows)):
        assert torch.equal(layer(rows[number : number + 1]), layer(rows)[number : number + 1])


@pytest.mark.parametrize("outputs", [40, 48])
def test_rows_without_a_range(outputs: int) -> None:
    linear = make_linear(outputs=outputs)
    layer = Int8Linear(linear)
    assert torch.equal(layer(torch.zeros(2, 48)), linear.bias.expand(2, -1))
    assert relative_error(layer(torch.full((2, 48), 3.0)), linear(torch.full((2, 48), 3.0))) <= 0.02
    assert layer(torch.empty(0, 48)).shape == (0, outputs)
    for column in (0, 5, 47):
        assert layer(make_rows().index_fill(1, torch.tensor([column]), float("nan"))).isnan().all()
    dead = make_linear(outputs=outputs)
    dead.weight[3] = 0.0
    assert torch.equal(Int8Linear(dead)(make_rows())[:, 3], dead.bias[3].expand(6))


@pytest.mark.parametrize("outputs", [40, 48])
def test_layers_are_copied_pickled_and_loaded(outputs: int) -> None:
    layer, other = (Int8Linear(make_linear(outputs=outputs, seed=seed)) for seed in (0, 1))
    rows = make_rows()
    for copied in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(copied(rows), layer(rows))
    assert not torch.equal(other(rows), layer(rows))
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(rows), layer(rows))
    with pytest.raises(RuntimeError, match=r"Unexpected key\(s\) in state_dict: \"weight\""):
        other.load_state_dict(make_linear().state_dict())


def test_the_engine_of_others_is_left_as_it_was() -> None:
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = "onednn"
    try:
        Int8Linear(make_linear())(make_rows())
        assert torch.backends.quantized.engine == "onednn"
    finally:
        torch.backends.quantized.engine = before


@pytest.mark.skipif(not int8.available(), reason="no kernels of our own")
def test_a_weight_is_in_memory_once() -> None:
    layer = Int8Linear(make_linear(256, 256))
    layer(make_rows(5, 256))
    tensors = [value for value in vars(layer).values() if isinstance(value, Tensor)] + list(layer.buffers())
    assert sum(tensor.nbytes for tensor in tensors) <= 256 * 256 + 4 * 4 * 256
    assert layer._packed is None


# Without kernels of our own, and without torch's


def hide_kernels(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "library", lambda: None)
    if how == "no operations":
        monkeypatch.setattr(torch.ops, "quantized", SimpleNamespace())
    elif how == "no quantized tensors":
        monkeypatch.delattr(torch, "_make_per_channel_quantized_tensor")
    elif how == "no engines":
        monkeypatch.setattr(torch.backends, "quantized", SimpleNamespace())
    else:
        monkeypatch.setattr(sys.modules["hashee.engine.int8"], "ENGINE", "of another processor")


WAYS_TO_BE_WITHOUT = ["no operations", "no quantized tensors", "no engines", "another processor"]


@pytest.mark.parametrize("how", WAYS_TO_BE_WITHOUT)
def test_a_layer_answers_the_same_without_kernels(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    linear, rows = make_linear(3072, 600), make_rows(7, 3072)
    expected = Int8Linear(linear)(rows)
    hide_kernels(how, monkeypatch)
    layer = Int8Linear(linear)
    assert relative_error(layer(rows), expected) <= 1e-6
    assert relative_error(layer(rows[2:3]), layer(rows)[2:3]) <= 1e-6
    assert torch.equal(copy.deepcopy(layer)(rows), layer(rows))
    assert layer(torch.empty(0, 3072)).shape == (0, 600)
    assert layer(rows.index_fill(1, torch.tensor([5]), float("nan"))).isnan().all()


@pytest.mark.parametrize("how", WAYS_TO_BE_WITHOUT)
def test_a_model_answers_the_same_without_kernels(
    how: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = converted(make_model("bert"), make_exits("random exits"))
    inputs = inputs_for(model)
    monkeypatch.setattr(native, "library", lambda: None)
    expected = states_of(quantize(model), **inputs)
    assert not caplog.text
    hide_kernels(how, monkeypatch)
    found = states_of(quantize(model), **inputs)
    # A state on the edge between two steps may fall to either side.
    assert relative_error(found, expected) <= 1e-3 < relative_error(states_of(model, **inputs), expected)
    assert "int8 saves memory, but no time" in caplog.text


# Models


@pytest.mark.parametrize("kind", ["full depth", "random exits"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_answers_nearly_the_same(family: str, kind: str) -> None:
    model = converted(make_model(family), make_exits(kind))
    quantized = quantize(model)
    assert type(quantized) is type(model) and quantized.exit_table == model.exit_table
    expected, found = (states_of(candidate, **inputs_for(model)) for candidate in (model, quantized))
    assert 0 < relative_error(found, expected) <= 0.08
    # A layer that is not quantized, or is twice, would show here.
    blocks = list(model.adapter.blocks(model.hashed_encoder))
    parts = [(block.attention.output, *block.feed_forward.modules) for block in blocks]
    always = {module for modules in parts for module in modules}
    names = {module: name for name, module in model.hashed_encoder.named_modules()}
    assert {names[module] for module in always} <= int8_names(quantized)


def test_keys_and_values_stay_float_where_attention_absorbs_them() -> None:
    def quantized_keys(family: str, kind: str) -> list[bool]:
        model = quantize(converted(make_model(family), make_exits(kind)))
        blocks = list(model.adapter.blocks(model.hashed_encoder))
        projections = [block.attention.projections for block in blocks]
        assert all(type(part.key) is type(part.value) for part in projections)
        return [isinstance(part.key, Int8Linear) for part in projections]

    # BERT's first layer looks its projections up; with tokens that exit at 1, all other layers may absorb.
    assert quantized_keys("bert", "random exits") == [False] * LAYERS
    assert quantized_keys("bert", "full depth") == [False] + [True] * (LAYERS - 1)
    # MPNet's position bias rules the absorbed form out; BART's first layer has nothing to look up.
    assert quantized_keys("mpnet", "random exits") == [False] + [True] * (LAYERS - 1)
    assert quantized_keys("bart", "random exits") == [True] + [False] * (LAYERS - 1)


def test_tokens_exit_where_they_did() -> None:
    exits = make_exits("exits at 0")
    model = converted(make_model("bert"), exits)
    inputs = inputs_for(model)
    expected, found = (
        states_of_all(candidate, **inputs) for candidate in (model, quantize(model))
    )  # (layers + 1, batch, length, width)
    exit_of = exits[inputs["input_ids"]].masked_fill(inputs["attention_mask"] == 0, 0)
    # Embeddings are not quantized, and a token that exits at 0 is never anything else.
    assert torch.equal(found[0], expected[0])
    assert (found[:, exit_of == 0] == expected[0, exit_of == 0]).all()
    for layer in range(1, LAYERS + 1):
        moved = (found[layer] != found[layer - 1]).any(-1)
        assert torch.equal(moved, exit_of >= layer)


def states_of_all(model: Any, **inputs: Any) -> Tensor:
    with torch.inference_mode():
        return torch.stack(model(**inputs, output_hidden_states=True).hidden_states)


def test_a_text_does_not_depend_on_the_others() -> None:
    exits = make_exits("full depth")
    model = quantize(converted(make_model("bert"), exits))
    inputs = inputs_for(model)
    other = inputs["input_ids"].clone()
    other[1:] = make_ids(seed=7)[1:]
    together, changed = states_of(model, **inputs), states_of(model, **inputs | {"input_ids": other})
    assert torch.allclose(together[0], changed[0], atol=1e-6)
    assert not torch.allclose(together[1:], changed[1:], atol=1e-2)


def test_the_original_is_left_alone_and_shares_what_stays() -> None:
    model = converted(make_model("bert", AutoModelForSequenceClassification), make_exits("random exits"))
    inputs = inputs_for(model)
    before = states_of(model, **inputs)
    quantized = quantize(model.train())
    assert model.training and all(parameter.requires_grad for parameter in model.parameters())
    assert not quantized.training and not any(parameter.requires_grad for parameter in quantized.parameters())
    ours, theirs = (candidate.get_input_embeddings().weight for candidate in (quantized, model))
    assert ours.data_ptr() == theirs.data_ptr()
    assert torch.equal(states_of(model.eval(), **inputs), before)
    assert sum(buffer.numel() for buffer in quantized.buffers() if buffer.dtype == torch.int8) > 0


def test_gradients_that_nobody_takes_do_not_matter() -> None:
    model = quantize(converted(make_model("bert"), make_exits("random exits")))
    inputs = inputs_for(model)
    assert torch.allclose(model(**inputs)[0], states_of(model, **inputs), atol=0.1)
    assert not model(**inputs)[0].requires_grad


@pytest.fixture(scope="module")
def minilm() -> Any:
    path = minilm_folder()
    tokenizer = AutoTokenizer.from_pretrained(path)
    texts = [text for text, _ in rotten_tomatoes()][:500]
    table = hashee.ExitTable.by_frequency(tokenizer, texts, num_layers=6, progress=False)
    return hashee.convert(AutoModel.from_pretrained(path).eval(), table, tokenizer=tokenizer)


def test_real_embeddings_keep_their_direction(minilm: Any) -> None:
    texts = [text for text, _ in rotten_tomatoes()][-24:]
    full_depth = hashee.ExitTable.never(minilm.tokenizer, num_layers=6)
    dense = hashee.convert(AutoModel.from_pretrained(minilm_folder()).eval(), full_depth, tokenizer=minilm.tokenizer)
    for model, bound in ((minilm, 0.995), (dense, 0.97)):
        exact, rounded = (
            np.stack([states.mean(0) for states in candidate.predict(texts, progress=False)])
            for candidate in (model, quantize(model))
        )
        norms = np.linalg.norm(exact, axis=1) * np.linalg.norm(rounded, axis=1)
        assert ((exact * rounded).sum(1) / norms).min() >= bound


# Loading and saving


def test_load_quantizes(minilm: Any, tmp_path: Path) -> None:
    minilm.save_pretrained(tmp_path)
    minilm.tokenizer.save_pretrained(tmp_path)
    loaded = hashee.load(tmp_path, quantize="int8")
    assert type(loaded) is type(minilm) and int8_names(loaded) == int8_names(quantize(minilm))
    texts = ["a quiet masterpiece", "dull"]
    answers, expected = (list(model.predict(texts, progress=False)) for model in (loaded, quantize(minilm)))
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(answers, expected, strict=True))
    assert not int8_names(hashee.load(tmp_path))
    gc.collect()
    before = {id(tensor) for tensor in gc.get_objects() if type(tensor) is nn.Parameter}
    loaded = hashee.load(tmp_path, quantize="int8")
    new = [tensor for tensor in gc.get_objects() if type(tensor) is nn.Parameter and id(tensor) not in before]
    kept = {id(parameter) for parameter in loaded.parameters()}
    assert new and {id(parameter) for parameter in new} <= kept  # no float weight of a layer outlives its int8 one
    with pytest.raises(HasheeError, match="unknown quantize 'int4'; choose int8"):
        hashee.load(tmp_path, quantize="int4")
    for backend in ("onnx", "openvino"):
        with pytest.raises(UnsupportedOption, match=f"for '{backend}'"):
            hashee.load(tmp_path, backend, quantize="int8")


def test_saving_is_refused_with_the_way_to_do_it(tmp_path: Path) -> None:
    model = quantize(converted(make_model("bert"), make_exits("random exits")))
    for candidate in (model, copy.deepcopy(model)):
        with pytest.raises(UnsupportedOption, match=r'hashee\.load\(folder, quantize="int8"\)'):
            candidate.save_pretrained(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_exporting_is_refused() -> None:
    model = quantize(converted(make_model("bert"), make_exits("random exits")))
    with pytest.raises(UnsupportedModel, match="export the model before quantizing it"):
        export_onnx(model, "unused")


# Refusals


def test_only_converted_models_are_quantized() -> None:
    with pytest.raises(UnsupportedModel, match=r"BertModel is not a converted model.*hashee\.convert"):
        quantize(make_model("bert"))


def test_training_is_refused() -> None:
    model = quantize(converted(make_model("bert"), make_exits("random exits")))
    with pytest.raises(UnsupportedOption, match=r"cannot be trained.*quantize it again"):
        model.train()(**inputs_for(model))
    assert states_of(model.eval(), **inputs_for(model)).isfinite().all()
    embeds = model.get_input_embeddings()(make_ids()).requires_grad_()
    with pytest.raises(UnsupportedOption, match="pass no gradients on"):
        model(make_ids(), inputs_embeds=embeds)


def test_other_types_and_devices_are_refused() -> None:
    model = converted(make_model("bert"), make_exits("random exits"))
    quantized = quantize(model)
    with pytest.raises(UnsupportedOption, match="without autocast"), torch.autocast("cpu", torch.bfloat16):
        quantized(**inputs_for(model))
    with pytest.raises(UnsupportedOption, match=r"torch\.bfloat16"):
        quantized.bfloat16()(**inputs_for(model))
    with pytest.raises(UnsupportedOption, match=r"torch\.float16 on cpu.*model\.float\(\)\.cpu\(\)"):
        quantize(converted(make_model("bert").half(), make_exits("random exits")))
    with pytest.raises(UnsupportedOption, match="on meta"):
        quantize(converted(make_model("bert"), make_exits("random exits")).to("meta"))


def test_layers_that_do_more_than_multiply_are_refused() -> None:
    model = converted(make_model("bert"), make_exits("random exits"))
    with pytest.raises(UnsupportedModel, match=r"Int8Linear.*quantize once"):
        quantize(quantize(model))
    peft = pytest.importorskip("peft")
    adapted = peft.inject_adapter_in_model(peft.LoraConfig(target_modules=["dense"]), copy.deepcopy(model))
    with pytest.raises(UnsupportedModel, match="merge_and_unload"):
        quantize(adapted)
    model.encoder.layer[1].output.dense.register_forward_hook(lambda *_: None)
    with pytest.raises(UnsupportedModel, match=r"encoder\.layer\.1\.output\.dense.*hooks"):
        quantize(model)
