"""An exported graph gives the outputs of the model, by itself, in two runtimes, with as few operations."""

import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    BertConfig,
)

import hashee
from architectures import (
    FAMILIES,
    SEQ2SEQ,
    VOCABULARY,
    converted,
    make_exits,
    make_mask,
    make_model,
)
from exported_models import TOLERANCE, distance, make_batch, make_bert, minilm_batch, truth
from hashee.export import OpenVinoModel, export_onnx, load
from hashee.families import FAMILIES as REGISTERED
from hashee.families.adapters import ADAPTERS

pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")

COVERED = sorted(name for name, adapter in ADAPTERS.items() if adapter.onnx is not None)
EXITS = ("full depth", "random exits", "exits at 0")
HEADS = {
    "sequence": AutoModelForSequenceClassification,
    "token": AutoModelForTokenClassification,
    "question answering": AutoModelForQuestionAnswering,
    "masked": AutoModelForMaskedLM,
}


def test_the_families_that_can_be_exported_are_those_of_the_docs() -> None:
    assert set(COVERED) == set(FAMILIES) - {*SEQ2SEQ, "deberta-v2", "eurobert", "gte", "modernbert", "nomic_bert"}
    table = (Path(__file__).parents[2] / "docs" / "architectures.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `([a-z0-9_-]+)` \|.*\| (yes|no) \|$", table, flags=re.MULTILINE)
    registered = [family.model_type for family in REGISTERED if family.adapter is not None]
    assert dict(listed) == {family: "yes" if family in COVERED else "no" for family in registered}


@pytest.mark.parametrize("exits_kind", EXITS)
@pytest.mark.parametrize("family", COVERED)
def test_states_equal_the_models(family: str, exits_kind: str, tmp_path: Path) -> None:
    model = converted(make_model(family), make_exits(exits_kind))
    exported = load(export_onnx(model, tmp_path / "out"))
    for kind in ("mixed lengths", "left", "holes"):
        assert distance(model, exported, make_batch(model, make_mask(kind))) <= TOLERANCE, kind


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("family", COVERED)
def test_heads_equal_the_models(family: str, head: str, tmp_path: Path) -> None:
    model = converted(make_model(family, HEADS[head]), make_exits("exits at 0"))
    exported = load(export_onnx(model, tmp_path / "out"))
    for kind in ("mixed lengths", "holes"):
        mask = make_mask(kind)
        mask[:, 0] = 1
        assert distance(model, exported, make_batch(model, mask)) <= TOLERANCE, kind


@pytest.mark.parametrize("exits_kind", ("full depth", "random exits"))
@pytest.mark.parametrize("family", COVERED)
def test_sequence_logits_equal_the_models_for_all_exits(family: str, exits_kind: str, tmp_path: Path) -> None:
    model = converted(make_model(family, AutoModelForSequenceClassification), make_exits(exits_kind))
    exported = load(export_onnx(model, tmp_path / "out"))
    assert distance(model, exported, make_batch(model, make_mask("mixed lengths"))) <= TOLERANCE


@pytest.mark.parametrize("auto_class", [AutoModel, AutoModelForSequenceClassification])
@pytest.mark.parametrize("family", ["albert", "bert", "distilbert", "mpnet", "roberta-prelayernorm"])
def test_openvino_equals_the_model(family: str, auto_class: Any, tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    model = converted(make_model(family, auto_class), make_exits("exits at 0"))
    exported = load(export_onnx(model, tmp_path / "out"), "openvino", threads=1)
    assert isinstance(exported, OpenVinoModel)
    for kind in ("mixed lengths", "holes"):
        mask = make_mask(kind)
        mask[:, 0] = 1
        assert distance(model, exported, make_batch(model, mask)) <= TOLERANCE, kind


def test_openvino_is_right_about_every_batch_that_is_larger_than_all_before(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    sizes = {"hidden_size": 192, "num_hidden_layers": 2, "num_attention_heads": 12, "intermediate_size": 768}
    torch.manual_seed(0)
    dense = AutoModelForSequenceClassification.from_config(BertConfig(vocab_size=200, **sizes))
    # Most ids exit at once, the last ten never do, so that layers can grow while the batch does not.
    table = hashee.ExitTable.from_tensor(torch.tensor([0] * 190 + [2] * 10), 2)
    model = hashee.convert(dense, table).eval()
    exported = load(export_onnx(model, tmp_path / "out"), "openvino", threads=1)
    generator = torch.Generator().manual_seed(0)
    for lowest, shape in ((0, (2, 9)), (0, (13, 42)), (190, (13, 42)), (0, (13, 44)), (150, (16, 47)), (0, (5, 9))):
        ids = torch.randint(lowest, 200, shape, generator=generator)
        batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        assert distance(model, exported, batch) <= TOLERANCE, (lowest, shape)


@pytest.mark.parametrize("backend", ["onnx", "openvino"])
@pytest.mark.parametrize("family", ["bert", "mpnet"])
def test_rows_without_tokens_do_not_change_the_others(family: str, backend: str, tmp_path: Path) -> None:
    pytest.importorskip("openvino" if backend == "openvino" else "onnxruntime")
    model = converted(make_model(family), make_exits("exits at 0"))
    exported = load(export_onnx(model, tmp_path / "out"), backend)
    mask = make_mask("holes")
    mask[1], mask[4] = 0, 0
    assert distance(model, exported, make_batch(model, mask)) <= TOLERANCE
    assert distance(model, exported, make_batch(model, mask * 0)) <= TOLERANCE
    assert distance(model, exported, make_batch(model, mask[:1])) <= TOLERANCE
    assert distance(model, exported, make_batch(model, mask[:1, 3:4])) <= TOLERANCE


def test_all_tokens_exiting_at_once_leaves_the_embeddings(tmp_path: Path) -> None:
    model = converted(make_model("bert"), torch.zeros(VOCABULARY, dtype=torch.long))
    exported = load(export_onnx(model, tmp_path / "out"))
    assert distance(model, exported, make_batch(model, make_mask("mixed lengths"))) <= TOLERANCE


def test_outputs_do_not_depend_on_neighbours(tmp_path: Path) -> None:
    model = make_bert()
    exported = load(export_onnx(model, tmp_path / "out"))
    batch = make_batch(model, make_mask("mixed lengths"))
    together = exported(**batch)["pooler_output"]
    for row in range(len(together)):
        alone = exported(**{name: values[row : row + 1] for name, values in batch.items()})["pooler_output"]
        assert np.abs(alone[0] - together[row]).max() <= TOLERANCE


def test_padding_may_hold_any_id(tmp_path: Path) -> None:
    model = make_bert()
    exported = load(export_onnx(model, tmp_path / "out"))
    batch = make_batch(model, make_mask("mixed lengths"))
    strange = batch | {"input_ids": batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)}
    for name, output in exported(**batch).items():
        assert (exported(**strange)[name] == output).all()


def test_token_types_are_read(tmp_path: Path) -> None:
    model = make_bert(type_vocab_size=2)
    exported = load(export_onnx(model, tmp_path / "out"))
    batch = make_batch(model, make_mask("mixed lengths"))
    typed = batch | {"token_type_ids": batch["input_ids"] % 2}
    assert exported.inputs == ("input_ids", "attention_mask", "token_type_ids")
    assert distance(model, exported, typed) <= TOLERANCE
    assert np.abs(exported(**typed)["pooler_output"] - exported(**batch)["pooler_output"]).max() > 1e-2


@pytest.mark.parametrize("activation", ["gelu_new", "gelu_pytorch_tanh", "gelu_fast", "quick_gelu", "relu", "silu"])
def test_activations(activation: str, tmp_path: Path) -> None:
    model = make_bert(hidden_act=activation)
    exported = load(export_onnx(model, tmp_path / "out"))
    assert distance(model, exported, make_batch(model, make_mask("mixed lengths"))) <= TOLERANCE


@pytest.mark.parametrize(("labels", "problem"), [(1, "regression"), (3, "multi_label_classification")])
def test_number_of_labels(labels: int, problem: str, tmp_path: Path) -> None:
    model = make_bert(AutoModelForSequenceClassification, num_labels=labels, problem_type=problem)
    exported = load(export_onnx(model, tmp_path / "out"))
    batch = make_batch(model, make_mask("mixed lengths"))
    assert exported(**batch)["logits"].shape == (5, labels)
    assert distance(model, exported, batch) <= TOLERANCE


@pytest.mark.parametrize("family", ["albert", "bert"])
def test_first_layers_alone(family: str, tmp_path: Path) -> None:
    model = converted(make_model(family), make_exits("exits at 0", layers=2), layers=2)
    exported = load(export_onnx(model, tmp_path / "out"))
    assert distance(model, exported, make_batch(model, make_mask("mixed lengths"))) <= TOLERANCE


@pytest.mark.parametrize("opset", [18, 20, 22])
def test_other_opsets(opset: int, tmp_path: Path) -> None:
    model = make_bert()
    exported = load(export_onnx(model, tmp_path / "out", opset=opset))
    assert exported.description["opset"] == opset
    assert distance(model, exported, make_batch(model, make_mask("mixed lengths"))) <= TOLERANCE


def test_export_takes_the_table_of_evaluation(tmp_path: Path) -> None:
    dense = make_model("bert")
    tables = [hashee.ExitTable.from_tensor(make_exits("exits at 0", seed=seed), num_layers=4) for seed in (2, 3)]
    model = hashee.convert(dense, tables[0], train_table=tables[1]).train()
    exported = load(export_onnx(model, tmp_path / "out"))
    assert model.training
    assert exported.description["table_fingerprint"] == tables[0].fingerprint
    assert distance(model.eval(), exported, make_batch(model, make_mask("mixed lengths"))) <= TOLERANCE


def test_half_precision_is_exported_as_float32(tmp_path: Path) -> None:
    model = make_bert().to(torch.bfloat16)
    exported = load(export_onnx(model, tmp_path / "out"))
    assert distance(model.float(), exported, make_batch(model, make_mask("mixed lengths"))) <= TOLERANCE


# Real weights, and programs that have neither torch nor hashee.


@pytest.mark.parametrize("backend", ["onnx", "openvino"])
def test_real_model(minilm: Any, minilm_export: Path, backend: str) -> None:
    pytest.importorskip("openvino" if backend == "openvino" else "onnxruntime")
    exported = load(minilm_export, backend, threads=1)
    assert distance(minilm, exported, minilm_batch(minilm)) <= TOLERANCE
    ids = exported.tokenizer(["a quiet masterpiece"], return_tensors="np")
    assert ids["input_ids"].tolist() == minilm.tokenizer(["a quiet masterpiece"])["input_ids"]


ALONE = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "hashee", "transformers"):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocker())
import numpy as np
from tokenizers import Tokenizer

folder, backend, texts = sys.argv[1], sys.argv[2], sys.argv[3:]
tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
tokenizer.enable_padding()
encoded = tokenizer.encode_batch(texts)
inputs = {
    "input_ids": np.array([e.ids for e in encoded]),
    "attention_mask": np.array([e.attention_mask for e in encoded]),
    "token_type_ids": np.array([e.type_ids for e in encoded]),
}
if backend == "onnx":
    import onnxruntime
    logits = onnxruntime.InferenceSession(f"{folder}/model.onnx").run(["logits"], inputs)[0]
else:
    import openvino
    # Where the processor has bfloat16, that is what OpenVINO computes in unless told otherwise.
    settings = {"INFERENCE_PRECISION_HINT": "f32"}
    logits = openvino.compile_model(f"{folder}/model.onnx", "CPU", settings)(inputs)["logits"]
assert not {"torch", "hashee", "transformers"} & set(sys.modules)
print(logits.tolist())
"""


@pytest.mark.parametrize("backend", ["onnx", "openvino"])
def test_folder_runs_without_torch_and_hashee(minilm: Any, minilm_export: Path, backend: str) -> None:
    pytest.importorskip("openvino" if backend == "openvino" else "onnxruntime")
    texts = ["a quiet masterpiece", "the film is not as good as the book , but it is worth the price of the ticket ."]
    command = [sys.executable, "-I", "-c", ALONE, str(minilm_export), backend, *texts]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    expected = truth(minilm, dict(minilm.tokenizer(texts, padding=True, return_tensors="pt"))).logits
    logits = json.loads(done.stdout.splitlines()[-1])
    assert np.abs(np.array(logits) - expected.numpy()).max() <= 1e-4


@pytest.mark.parametrize("backend", ["onnx", "openvino"])
def test_threads_share_a_model(minilm: Any, minilm_export: Path, backend: str) -> None:
    pytest.importorskip("openvino" if backend == "openvino" else "onnxruntime")
    exported = load(minilm_export, backend, threads=1)
    batch = minilm_batch(minilm, texts=6)
    rows = [{name: values[row : row + 1] for name, values in batch.items()} for row in range(6)]
    alone = [exported(**row)["logits"] for row in rows]
    with ThreadPoolExecutor(3) as pool:
        together = list(pool.map(lambda row: exported(**row)["logits"], rows * 3))
    assert all(np.abs(logits - alone[index % 6]).max() <= TOLERANCE for index, logits in enumerate(together))


# Fewer operations: what ONNX Runtime says that it ran.


def executed(folder: Path, batch: dict[str, Any], scratch: Path) -> list[dict[str, Any]]:
    """Run a batch and return the matrix products of ONNX Runtime's profile, branches included."""
    options = runtime.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(scratch / "profile")
    # Unfused, every product is a Gemm or MatMul whose shapes are in the profile.
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = runtime.InferenceSession(folder / "model.onnx", options)
    session.run(None, {name: values.numpy() for name, values in batch.items()})
    events = json.loads(Path(session.end_profiling()).read_text())
    kernels = [event["args"] for event in events if event["name"].endswith("_kernel_time")]
    return [kernel for kernel in kernels if kernel["op_name"] in ("Gemm", "MatMul")]


def shape_of(entry: dict[str, list[int]]) -> list[int]:
    return next(iter(entry.values()))


def macs(kernels: list[dict[str, Any]]) -> int:
    """Multiply-accumulates: cells of the result x width of the left factor."""
    return sum(
        int(np.prod(shape_of(kernel["output_type_shape"][0]))) * shape_of(kernel["input_type_shape"][0])[-1]
        for kernel in kernels
    )


def expected_macs(shape: Any, tokens: int, active: list[int], labels: int) -> int:
    """Count one text by hand: the cheaper form of attention in every layer, one row in the last one."""
    d, n = shape.width, tokens
    total = d * d + d * labels
    for m in (*active[:-1], 1):
        plain = 2 * n * d * d + 2 * m * n * d
        absorbed = 2 * m * d * d + 2 * shape.heads * m * n * d
        total += 2 * m * d * d + min(plain, absorbed) + 2 * m * d * shape.inner
    return total


def test_operations_of_a_text_are_those_counted_by_hand(minilm: Any, minilm_export: Path, tmp_path: Path) -> None:
    text = "the film is not as good as the book , but it is more than worth the price of the ticket ."
    batch = dict(minilm.tokenizer([text], return_tensors="pt"))
    done = macs(executed(minilm_export, batch, tmp_path))
    count = hashee.count_flops(minilm, [text], tokenizer=minilm.tokenizer)
    shape = ADAPTERS["bert"].shape(minilm.config)
    assert done == expected_macs(shape, count.tokens, [layer.active for layer in count.layers], labels=2)
    assert done < count.paper_macs < count.full_depth_macs / 2


def test_layers_compute_the_active_rows_of_a_batch_and_no_others(
    minilm: Any, minilm_export: Path, tmp_path: Path
) -> None:
    batch = minilm_batch(minilm)
    kernels = executed(minilm_export, batch, tmp_path)
    widened = [shape for kernel in kernels if (shape := shape_of(kernel["output_type_shape"][0]))[-1] == 1536]
    exits = minilm.exit_table.exit_layers[batch["input_ids"]].masked_fill(batch["attention_mask"] == 0, -1)
    rows = [int((exits >= layer).sum()) for layer in range(1, 6)]
    assert [shape[0] for shape in widened] == [*rows, len(exits)]
    assert rows[-1] < rows[0] < exits.numel()


def test_both_forms_of_attention_are_tested_above(tmp_path: Path) -> None:
    # Absorbed attention multiplies by one matrix per head; plain attention projects keys and values at once.
    model = make_bert()
    export_onnx(model, tmp_path / "out")
    batch = make_batch(model, make_mask("mixed lengths"))
    batch["token_type_ids"] = torch.zeros_like(batch["input_ids"])
    lefts, results = [], []
    for number in range(len(batch["input_ids"])):
        one = {name: values[number : number + 1] for name, values in batch.items()}
        for kernel in executed(tmp_path / "out", one, tmp_path):
            lefts.append(shape_of(kernel["input_type_shape"][0]))
            results.append(shape_of(kernel["output_type_shape"][0]))
    assert any(len(shape) == 2 and shape[-1] == 48 for shape in results), "plain"
    assert any(len(shape) == 3 and shape[0] == 3 and shape[-1] == 24 for shape in lefts), "absorbed"
