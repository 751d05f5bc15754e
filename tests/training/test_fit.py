"""A fit learns, writes what others can open, and says what it did."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fitting_data import make_backbone, make_data
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertForSequenceClassification, pipeline

import hashee
from hashee.data.task import Examples, Kind, TaskData
from hashee.errors import HasheeError, InputError, TableError
from hashee.training import FitResult, fit
from hashee.training.settings import HASHES


def quick(output: Path, model: Path, **changes: Any) -> FitResult:
    """Fit without a dense model, one epoch: for what does not depend on quality."""
    fields: dict[str, Any] = {"task": make_data(), "hash": "frequency", "warm_start": False, "epochs": 1}
    return fit(**(fields | {"output": output, "backbone": str(model), "quiet": True} | changes))


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Return the largest difference between the weights of two models."""
    assert one.keys() == other.keys()
    # Softmax cancels the bias of keys: its gradient is rounding error, which AdamW blows up to full steps.
    names = [name for name in one if not name.endswith("key.bias")]
    return max(float((one[name].double() - other[name].double()).abs().max()) for name in names)


@pytest.fixture(scope="module")
def fitted(backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> FitResult:
    """The whole way: dense model, both tables, the better one."""
    return fit(task=make_data(), backbone=str(backbone), output=tmp_path_factory.mktemp("fit") / "out", quiet=True)


def test_it_learns(fitted: FitResult) -> None:
    assert fitted.run["metrics"]["dev"]["score"] >= 0.9
    assert fitted.run["metrics"]["test"]["score"] >= 0.9
    losses = [row["loss"] for row in fitted.run["history"] if "loss" in row]
    assert len(losses) == 36
    assert np.mean(losses[-5:]) < 0.2


def test_the_folder_is_a_model_for_everybody(fitted: FitResult) -> None:
    data = make_data()
    texts = list(data.test.texts) if data.test else []
    loaded = AutoModelForSequenceClassification.from_pretrained(fitted.folder)
    assert loaded.exit_table == fitted.model.exit_table
    assert loaded.config.id2label == {0: "bad", 1: "good"}
    answers = [int(row.argmax()) for row in hashee.load(fitted.folder).predict(texts, progress=False)]
    right = np.mean(np.array(answers) == np.array(data.test.targets if data.test else []))
    assert right == fitted.run["metrics"]["test"]["accuracy"]
    assert pipeline("text-classification", model=str(fitted.folder))(texts[0])[0]["label"] in ("bad", "good")
    card = (fitted.folder / "README.md").read_text()
    assert "library_name: transformers" in card
    assert f"| test | accuracy | {right:.4f} |" in card


def test_the_dense_model_needs_transformers_alone(fitted: FitResult) -> None:
    folder, data = fitted.folder / "dense", make_data()
    dense = AutoModelForSequenceClassification.from_pretrained(folder)
    assert type(dense) is BertForSequenceClassification
    inputs = AutoTokenizer.from_pretrained(folder)(list(data.dev.texts), padding=True, return_tensors="pt")
    with torch.no_grad():
        answers = dense.eval()(**inputs).logits.argmax(1).tolist()
    right = np.mean(np.array(answers) == np.array(data.dev.targets))
    assert right == fitted.run["dense"]["metrics"]["dev"]["score"] >= 0.9


def test_run_json_says_what_was_done(fitted: FitResult, backbone: Path) -> None:
    run = json.loads((fitted.folder / "run.json").read_text())
    assert run == fitted.run
    assert [each["hash"] for each in run["candidates"]] == ["frequency", "importance"]
    best = max(run["candidates"], key=lambda each: each["dev"]["score"])
    assert run["table"]["method"] == best["hash"]
    assert run["metrics"]["dev"] == best["dev"], "what was chosen in training is what is in the folder"
    assert run["data"]["fingerprint"] == make_data().fingerprint
    assert run["data"]["sizes"] == {"train": 96, "dev": 40, "test": 40}
    assert run["backbone"] == {"name": str(backbone), "layers": 3, "depth": 3}
    assert run["recipe"]["learning_rate"] == 1e-2
    assert run["macs"]["speedup"] > run["macs"]["paper_speedup"] > 1
    assert run["seconds"]["total"] >= run["seconds"]["dense"] > 0
    assert run["versions"]["transformers"]
    assert {path.name for path in fitted.folder.iterdir() if path.is_dir()} == {"dense"}, "checkpoints are gone"


def test_another_hash_reuses_the_dense_model(fitted: FitResult, tmp_path: Path, backbone: Path) -> None:
    before = (fitted.folder / "dense" / "stage.json").stat().st_mtime_ns
    again = fit(
        task=make_data(), backbone=str(backbone), output=fitted.folder, hash="random", overwrite=True, quiet=True
    )
    assert (fitted.folder / "dense" / "stage.json").stat().st_mtime_ns == before
    assert again.run["table"]["method"] == "random"
    given = quick(tmp_path / "given", backbone, dense=fitted.folder / "dense", warm_start=True, hash="mi")
    assert given.run["dense"]["metrics"] == again.run["dense"]["metrics"]
    assert given.run["table"]["method"] == "mutual_information"


@pytest.mark.parametrize("kind", [Kind.LABELS, Kind.SCORE, Kind.TAGS])
def test_other_kinds_of_tasks_are_learnt(kind: Kind, backbone: Path, tmp_path: Path) -> None:
    data = make_data(kind, pair=kind is Kind.SCORE)
    run = quick(tmp_path / "out", backbone, task=data, epochs=4).run
    assert run["metrics"]["test"]["score"] >= {Kind.LABELS: 0.75, Kind.SCORE: 0.85, Kind.TAGS: 0.97}[kind]
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    if kind is not Kind.TAGS:
        assert config["problem_type"] == {Kind.LABELS: "multi_label_classification", Kind.SCORE: "regression"}[kind]


def test_distillation_follows_the_dense_model(fitted: FitResult, backbone: Path, tmp_path: Path) -> None:
    dense, other = fitted.folder / "dense", make_data(train=40)
    upside_down = Examples(other.train.texts, [1 - target for target in other.train.targets or ()])
    data = TaskData(other.task, upside_down, other.dev, other.test, "upside down")
    options: dict[str, Any] = {"task": data, "dense": dense, "warm_start": True, "epochs": 4}
    alone = quick(tmp_path / "alone", backbone, **options)
    taught = quick(tmp_path / "taught", backbone, distill=1.0, **options)
    assert alone.run["metrics"]["test"]["score"] < 0.6
    assert taught.run["metrics"]["test"]["score"] >= 0.9


def test_texts_without_labels_are_learnt_from_the_dense_model(
    fitted: FitResult, backbone: Path, tmp_path: Path
) -> None:
    other = make_data()
    data = TaskData(other.task, Examples(other.train.texts, None), other.dev, other.test, "unlabelled")
    options: dict[str, Any] = {"task": data, "dense": fitted.folder / "dense", "epochs": 4}
    taught = quick(tmp_path / "taught", backbone, distill=1.0, **options)
    assert taught.run["metrics"]["test"]["score"] >= 0.9
    with pytest.raises(InputError, match="no labels; distill a fitted model"):
        quick(tmp_path / "alone", backbone, **options)


def test_hidden_states_are_distilled(fitted: FitResult, backbone: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"dense": fitted.folder / "dense", "warm_start": True, "distill": 1.0}
    apart = []
    for name, weight in (("without", 0.0), ("with", 10.0)):
        quick(tmp_path / name, backbone, distill_hidden=weight, **options)
        student = hashee.load(tmp_path / name)
        teacher = AutoModelForSequenceClassification.from_pretrained(fitted.folder / "dense").eval()
        inputs = AutoTokenizer.from_pretrained(backbone)(list(make_data().dev.texts), padding=True, return_tensors="pt")
        with torch.no_grad():
            states = [each(**inputs, output_hidden_states=True).hidden_states[-1][:, 0] for each in (student, teacher)]
        apart.append(float((states[0] - states[1]).square().mean()))
    assert apart[1] < 0.7 * apart[0]


@pytest.mark.parametrize("kind", [Kind.CLASSES, Kind.TAGS])
def test_small_micro_batches_take_the_same_steps(kind: Kind, plain_backbone: Path, tmp_path: Path) -> None:
    data = make_data(kind, train=40)
    quick(tmp_path / "whole", plain_backbone, task=data)
    quick(tmp_path / "cut", plain_backbone, task=data, tokens=20)
    assert distance(weights(tmp_path / "whole"), weights(tmp_path / "cut")) < 1e-3


def test_training_can_stop_early_and_keeps_the_best(backbone: Path, tmp_path: Path) -> None:
    run = quick(tmp_path / "out", backbone, epochs=40, eval_steps=4, patience=2).run
    scores = [row["score"] for row in run["history"] if "score" in row]
    assert len(scores) - 1 - scores.index(max(scores)) == 2
    assert len(scores) < 40
    assert run["metrics"]["dev"]["score"] == max(scores)
    assert run["candidates"][0]["best_step"] == 4 * (scores.index(max(scores)) + 1)


def test_bfloat16_learns_too(backbone: Path, tmp_path: Path) -> None:
    run = quick(tmp_path / "out", backbone, bf16=True, epochs=3).run
    assert run["metrics"]["dev"]["score"] >= 0.85
    assert {tensor.dtype for tensor in weights(tmp_path / "out").values()} == {torch.float32, torch.int64}


def test_a_deeper_backbone_is_cut(tmp_path: Path) -> None:
    backbone = make_backbone(tmp_path / "deep", layers=4)
    run = quick(tmp_path / "out", backbone, depth=3, hash="frequency", speedup=2.5, warm_start=True).run
    assert run["backbone"]["layers"] == 4
    assert run["table"]["num_layers"] == 3
    assert run["macs"]["speedup"] == pytest.approx(2.5, rel=0.25)
    dense = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out" / "dense")
    assert dense.config.num_hidden_layers == len(dense.bert.encoder.layer) == 3


def test_a_table_of_one_s_own_is_taken_as_it_is(backbone: Path, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(backbone)
    table = hashee.ExitTable.from_mapping(tokenizer, {"the": 1, "film": 1}, num_layers=2)
    table.save(tmp_path / "table")
    result = quick(tmp_path / "out", backbone, table=tmp_path / "table")
    assert result.model.exit_table.fingerprint == table.fingerprint
    assert result.run["backbone"]["depth"] == 2


# --- what cannot be done --------------------------------------------------------------------------------------


def test_texts_are_cut_where_they_were_in_training(backbone: Path, tmp_path: Path) -> None:
    result = quick(tmp_path / "out", backbone, max_length=6)
    text = " ".join(str(text) for text in make_data().train.texts[:4])
    tokenizer = AutoTokenizer.from_pretrained(result.folder)
    cut = tokenizer(text, truncation=True, return_tensors="pt")
    assert len(tokenizer(text)["input_ids"]) > cut["input_ids"].shape[1] == 6
    with torch.inference_mode():
        expected = result.model(**cut).logits[0].numpy()
    np.testing.assert_allclose(next(iter(result.model.predict([text]))), expected, atol=1e-6)


def test_a_run_is_not_overwritten_by_accident(fitted: FitResult, backbone: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--resume\) or replace it \(--overwrite"):
        quick(fitted.folder, backbone)
    with pytest.raises(InputError, match=r"was begun otherwise: .* was .* and is now"):
        quick(fitted.folder, backbone, resume=True, learning_rate=0.5)
    with pytest.raises(InputError, match="nothing to resume"):
        quick(tmp_path / "nowhere", backbone, resume=True)
    with pytest.raises(InputError, match="not fitted here; name another output"):
        quick(backbone, backbone, overwrite=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"backbone": "/no/such/model"}, "cannot load a backbone from /no/such/model"),
        ({"depth": 7}, "depth is 7 but the backbone .* has 3 layers"),
        ({"hash": "mi", "task": make_data(Kind.TAGS)}, "mi needs a label for each text"),
        ({"dense": "BACKBONE", "warm_start": True}, "has no head for the labels"),
    ],
)
def test_bad_input_is_one_clear_line(changes: dict[str, Any], message: str, backbone: Path, tmp_path: Path) -> None:
    changes = {name: backbone if value == "BACKBONE" else value for name, value in changes.items()}
    with pytest.raises(HasheeError, match=message):
        quick(tmp_path / "out", backbone, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *(({"hash": hash, "speedup": 50.0}, "50x cannot be had") for hash in HASHES),
        ({"hash": "importance", "speedup": 5.0, "min_exit": 1}, "exits from 0 reach"),
        ({"hash": "mi", "task": make_data(Kind.TAGS)}, "mi needs a label for each text"),
    ],
)
def test_what_no_table_can_do_is_refused_before_training(
    changes: dict[str, Any], message: str, backbone: Path, tmp_path: Path
) -> None:
    with pytest.raises(HasheeError, match=message):
        quick(tmp_path / "out", backbone, warm_start=True, **changes)
    assert not (tmp_path / "out" / "dense").exists()


def test_models_with_exits_are_no_backbones(fitted: FitResult, tmp_path: Path) -> None:
    with pytest.raises(HasheeError, match="has exits already"):
        quick(tmp_path / "out", fitted.folder)


def test_a_damaged_backbone_is_refused(backbone: Path, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    broken = make_backbone(tmp_path / "broken")
    tensors = weights(broken)
    del tensors["encoder.layer.1.output.dense.weight"]
    save_file(tensors, broken / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(HasheeError, match="lacks 1 weights of the encoder"):
        quick(tmp_path / "out", broken)


def test_a_loss_that_is_no_number_ends_the_training(backbone: Path, tmp_path: Path) -> None:
    data = make_data(Kind.SCORE)
    huge = Examples(data.train.texts, [1e30 * float(target) for target in data.train.targets or ()])  # type: ignore[arg-type]
    with pytest.raises(HasheeError, match="the loss became inf at step 1; use a learning rate below"):
        quick(tmp_path / "out", backbone, task=TaskData(data.task, huge, data.dev, None, "huge"))


def test_a_full_disk_is_one_clear_line(backbone: Path, tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Checkpoints of the model are larger than that, whatever else is written is smaller.
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(HasheeError, match=r"no space to write to .*go on with --resume"):
            quick(tmp_path / "out", backbone)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert quick(tmp_path / "out", backbone, resume=True).run["metrics"]["dev"]


def test_a_run_that_was_refused_does_not_stand_in_the_way(backbone: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "backbone": str(backbone),
        "output": tmp_path / "out",
        "quiet": True,
        "hash": "frequency",
    }
    with pytest.raises(TableError, match="50x cannot be had"):
        fit(task=make_data(), speedup=50.0, **options)
    result = fit(task=make_data(), speedup=2.0, epochs=1, **options)
    with pytest.raises(InputError, match="holds a run already"):
        fit(task=make_data(), speedup=2.0, epochs=1, **options)
    assert result.run.settings["speedup"] == 2.0
