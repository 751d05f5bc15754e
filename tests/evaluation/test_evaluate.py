"""An evaluation measures what the model in the folder predicts, and refuses what it cannot predict."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from evaluating_data import LABELS, make_dense, make_task, one_by_one, save_dense, save_hashed
from transformers import AutoModel

import hashee
from hashee.data import elue_score, mflops_per_text, score
from hashee.data.task import Examples, Kind, TaskData
from hashee.errors import HasheeError, InputError
from hashee.evaluation import EvaluateSettings, Evaluation, evaluate
from small_tokenizer import make_tokenizer

KINDS = [
    pytest.param(kind, pair, id=f"{kind}{' of pairs' if pair else ''}")
    for kind, pair in [(Kind.CLASSES, False), (Kind.CLASSES, True), (Kind.LABELS, False), (Kind.SCORE, True)]
] + [pytest.param(Kind.TAGS, False, id="tagging")]


def quick(model: Any, data: TaskData, split: str = "test", **changes: Any) -> Evaluation:
    """Evaluate without timing."""
    return evaluate(model, data, split, **({"rounds": 0, "quiet": True} | changes))


def predictions_of(kind: Kind, logits: list[torch.Tensor]) -> list[Any]:
    if kind is Kind.SCORE:
        return [row[0].item() for row in logits]
    if kind is Kind.LABELS:
        return [tuple((row > 0).int().tolist()) for row in logits]
    return [row.argmax(-1).tolist() for row in logits]


@pytest.mark.parametrize(("kind", "pair"), KINDS)
@pytest.mark.parametrize("dense", [False, True])
def test_quality_and_cost_are_those_of_the_model(kind: Kind, pair: bool, dense: bool, tmp_path: Path) -> None:
    data = make_task(kind, pair)
    assert data.test is not None and data.test.targets is not None
    folder = save_dense(tmp_path, kind) if dense else save_hashed(tmp_path, kind)
    found = quick(folder, data)
    model = make_dense(kind) if dense else hashee.load(folder)
    expected = score(data.task, predictions_of(kind, one_by_one(model, data)), data.test.targets)
    assert found.quality == pytest.approx(expected, abs=1e-4)
    assert found.score == found.quality["score"] if found.quality else False
    texts = [" ".join(text) if kind is Kind.TAGS else text for text in data.test.texts]
    count = hashee.count_flops(model, texts, tokenizer=make_tokenizer())
    assert [layer.active for layer in found.cost.layers] == [layer.active for layer in count.layers]
    assert found.cost.paper_macs == count.paper_macs
    if dense:
        assert found.model.table is None and found.explanations == ()
        assert found.cost.executed_macs == found.cost.full_depth_macs == count.full_depth_macs
    else:
        assert found.model.table is not None and found.model.table["method"] == "random"
        assert found.cost.executed_macs == count.executed_macs
        # The model was made from four layers, of which it has three.
        assert (found.model.layers, found.model.full_layers) == (3, 4)
        assert found.cost.full_depth_macs == pytest.approx(count.full_depth_macs * 4 / 3)


@pytest.mark.parametrize(("kind", "pair"), KINDS)
def test_a_model_agrees_with_itself(kind: Kind, pair: bool, tmp_path: Path) -> None:
    folder, data = save_dense(tmp_path / "dense", kind), make_task(kind, pair)
    never = hashee.ExitTable.never(make_tokenizer(), 4)
    hashee.convert(make_dense(kind), never, make_tokenizer()).save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    found = quick(tmp_path, data)
    assert found.dense is not None and found.dense.source == str(folder), "the folder's own dense model is found"
    assert found.dense.agreement.value == pytest.approx(1.0, abs=1e-6)
    assert found.dense.agreement.metric == ("pearson" if kind is Kind.SCORE else "equal predictions")
    assert found.quality_kept is None, "nothing says that both were trained alike"
    assert quick(tmp_path, data, dense=folder.rename(tmp_path / "given")).quality_kept == pytest.approx(1.0, abs=1e-4)
    assert quick(tmp_path, data, dense=None).dense is None


def test_another_model_agrees_as_often_as_it_does(tmp_path: Path) -> None:
    data = make_task()
    found = quick(save_hashed(tmp_path / "one"), data, dense=save_dense(tmp_path / "other", seed=7))
    one, other = hashee.load(tmp_path / "one"), make_dense(seed=7)
    both = [predictions_of(Kind.CLASSES, one_by_one(model, data)) for model in (one, other)]
    equal = np.mean(np.array(both[0]) == np.array(both[1]))
    assert found.dense is not None and 0 < equal < 1
    assert found.dense.agreement.value == equal
    assert found.macs_saved == pytest.approx(found.cost.full_depth_macs / found.cost.executed_macs)


# --- labels and heads --------------------------------------------------------------------------------------------


def test_outputs_are_matched_with_labels_by_name(tmp_path: Path) -> None:
    data = make_task()
    expected = quick(save_hashed(tmp_path / "straight"), data)
    model = make_dense()
    turned = {number: label.upper() for number, label in enumerate(reversed(LABELS[Kind.CLASSES]))}
    model.config.id2label, model.config.label2id = turned, {label: number for number, label in turned.items()}
    with torch.no_grad():
        model.classifier.weight.copy_(model.classifier.weight.flip(0).clone())
        model.classifier.bias.copy_(model.classifier.bias.flip(0).clone())
    table = hashee.load(tmp_path / "straight").exit_table
    found = quick(hashee.convert(model, table, make_tokenizer()), data)
    assert found.quality == expected.quality
    for one, other in zip(found.worst, expected.worst, strict=True):
        assert replace(one, loss=0, confidence=0) == replace(other, loss=0, confidence=0)


def test_labels_that_differ_are_refused_unless_they_are_named(tmp_path: Path) -> None:
    names = {"id2label": {0: "LABEL_0", 1: "LABEL_1", 2: "LABEL_2"}, "label2id": {"LABEL_0": 0}}
    folder, data = save_hashed(tmp_path / "one", **names), make_task()
    with pytest.raises(InputError, match=r"has LABEL_0, LABEL_1, LABEL_2 \(3\), tiny-.* has bad, dull, good .*labels"):
        quick(folder, data)
    expected = quick(save_hashed(tmp_path / "other"), data)
    assert quick(folder, data, labels="bad, dull, good").quality == expected.quality
    with pytest.raises(InputError, match="2 names for the 3 outputs"):
        quick(folder, data, labels=("bad", "good"))
    numbered = replace(data, task=replace(data.task, labels=("0", "1", "2")))
    assert quick(folder, numbered).quality == expected.quality, "numbers need no names"
    fewer = replace(data, task=replace(data.task, labels=("bad", "good")))
    with pytest.raises(InputError, match=r"bad, dull, good \(3\), tiny-classification has bad, good \(2\)"):
        quick(tmp_path / "other", fewer)


@pytest.mark.parametrize(
    ("head", "asked", "message"),
    [
        (Kind.TAGS, Kind.CLASSES, "is a Hashee.*ForTokenClassification; .* needs a head .*ForSequenceClassification"),
        (Kind.CLASSES, Kind.TAGS, "needs a head of the kind ForTokenClassification"),
        (Kind.SCORE, Kind.LABELS, "is for regression, but tiny-multi-label is multi-label"),
        (Kind.CLASSES, Kind.SCORE, "has 3 outputs, but tiny-regression asks for one score"),
    ],
)
def test_another_kind_of_head_is_refused(head: Kind, asked: Kind, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        quick(save_hashed(tmp_path, head), make_task(asked))


def test_folders_without_a_usable_model_are_refused(tmp_path: Path) -> None:
    data = make_task()
    with pytest.raises(InputError, match="no such file or folder"):
        quick("/no/such/folder", data)
    with pytest.raises(HasheeError, match=r"holds no config\.json"):
        quick(tmp_path, data)
    AutoModel.from_config(make_dense().config).save_pretrained(tmp_path / "headless")
    with pytest.raises(InputError, match="is a BertModel"):
        quick(tmp_path / "headless", data)
    config = json.loads((tmp_path / "headless" / "config.json").read_text())
    config["architectures"] = ["BertForSequenceClassification"]
    (tmp_path / "headless" / "config.json").write_text(json.dumps(config))
    with pytest.raises(HasheeError, match=r"lacks 2 weights, such as classifier\.bias"):
        quick(tmp_path / "headless", data)


def test_outputs_that_are_no_numbers_are_refused() -> None:
    model = make_dense()
    with torch.no_grad():
        model.classifier.bias[1] = float("inf")
    with pytest.raises(HasheeError, match="predicts inf for example 0"):
        quick(model, make_task(), tokenizer=make_tokenizer())


# --- splits ------------------------------------------------------------------------------------------------------


def test_dev_is_evaluated_where_test_has_no_labels_and_nobody_chose(tmp_path: Path) -> None:
    model, data = save_hashed(tmp_path), make_task(targets=False)
    options: dict[str, Any] = {"rounds": 0, "quiet": True}
    found = evaluate(model, data, **options)
    assert found.split == "dev" and found.quality == quick(model, data, "dev").quality
    assert found.provenance.data_notes[0].startswith("the labels of tiny-classification's test split are not known")
    assert found.provenance.data_notes[1:] == data.notes == quick(model, data, "dev").provenance.data_notes
    assert evaluate(model, make_task(), **options).split == "test"
    assert evaluate(model, data, settings=EvaluateSettings(split="dev"), **options).split == "dev"
    assert evaluate(model, replace(data, test=None), **options).split == "dev"
    file = tmp_path / "predictions.tsv"
    assert evaluate(model, data, submission=file, **options).split == "test", "that is what a submission is for"


def test_splits_are_told_apart(tmp_path: Path) -> None:
    data = make_task()
    folder = save_hashed(tmp_path)
    dev = quick(folder, replace(data, test=None), "dev")
    assert dev.split == "dev"
    assert dev.quality == quick(folder, replace(data, test=data.dev)).quality != quick(folder, data).quality
    for test in (None, Examples([], [])):
        with pytest.raises(InputError, match="has no examples in test; choose the other split"):
            quick(folder, replace(data, test=test))
    with pytest.raises(InputError, match="split is 'train'"):
        quick(folder, data, "train")


def test_without_labels_only_a_submission_can_be_made(tmp_path: Path) -> None:
    data = make_task(targets=False)
    folder = save_hashed(tmp_path / "model")
    with pytest.raises(InputError, match=r"are not known .*--submission FILE"):
        quick(folder, data)
    found = quick(folder, data, submission=tmp_path / "predictions.tsv", dense=save_dense(tmp_path / "dense"))
    assert found.quality is None and found.score is None and found.worst == () and found.quality_kept is None
    lines = (tmp_path / "predictions.tsv").read_text().splitlines()
    rows = predictions_of(Kind.CLASSES, one_by_one(hashee.load(folder), data))
    assert lines == ["index\tprediction", *(f"{n}\t{LABELS[Kind.CLASSES][row]}" for n, row in enumerate(rows))]
    found.save(tmp_path / "report")
    assert "Worst examples" not in (tmp_path / "report" / "report.html").read_text()


# --- what else is on the page ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.SUMMARIES])
def test_the_worst_examples_are_errors_first(kind: Kind, tmp_path: Path) -> None:
    data = make_task(kind)
    assert data.test is not None and data.test.targets is not None
    folder = save_hashed(tmp_path, kind)
    found = quick(folder, data, worst=23).worst
    assert [example.index for example in quick(folder, data, worst=4).worst] == [each.index for each in found[:4]]
    assert sorted(example.index for example in found) == list(range(23))
    losses, right = [], []
    for logits, target in zip(one_by_one(hashee.load(folder), data), data.test.targets, strict=True):
        if kind is Kind.SCORE:
            losses.append(abs(logits[0].item() - float(target)))  # type: ignore[arg-type]
            right.append(None)
        elif kind is Kind.LABELS:
            wanted = torch.tensor(target, dtype=torch.float32)
            losses.append(torch.nn.functional.binary_cross_entropy_with_logits(logits, wanted).item())
            right.append(bool(((logits > 0) == (wanted > 0)).all()))
        else:
            losses.append(torch.nn.functional.cross_entropy(logits, torch.tensor(target)).item())
            right.append(bool((logits.argmax(-1) == torch.tensor(target)).all()))
    assert [example.right for example in found] == [right[example.index] for example in found]
    wrongs = [example for example in found if not example.right]
    assert list(found[: len(wrongs)]) == wrongs, "no right prediction before an error"
    assert kind in (Kind.SCORE, Kind.TAGS) or 0 < len(wrongs) < 23, "both are there"
    by_loss = [found[len(wrongs) :]] if kind is Kind.CLASSES else [wrongs, found[len(wrongs) :]]
    for group in by_loss:
        assert [each.loss for each in group] == sorted((each.loss for each in group), reverse=True)
    if kind is Kind.CLASSES:
        sure = [example.confidence or 0.0 for example in wrongs]
        assert sure == sorted(sure, reverse=True)
    for example in found:
        assert example.loss == pytest.approx(losses[example.index], abs=1e-3)
        assert (example.confidence is None) == (kind is Kind.SCORE)
        assert example.confidence is None or 0 < example.confidence <= 1
        text: Any = data.test.texts[example.index]
        assert example.text == (text if isinstance(text, str) else " ".join(text))
        if kind is Kind.CLASSES:
            assert example.gold == LABELS[kind][data.test.targets[example.index]]  # type: ignore[index]
    if kind is Kind.TAGS:
        assert "/" in found[0].gold and len(found[0].gold.split()) == len(found[0].predicted.split())


def test_the_dictionary_is_json_of_a_known_form(tmp_path: Path) -> None:
    found = evaluate(
        save_hashed(tmp_path / "one"), make_task(), dense=save_dense(tmp_path / "two"), rounds=2, quiet=True
    )
    values = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert list(values) == [
        *("format", "model", "task", "split", "texts", "quality", "quality_kept", "quality_kept_reason"),
        *("equal_passes", "cost", "macs_per_text"),
        *("macs_saved", "timing", "measured_speedup", "measured_range", "peak_memory_mb", "elue", "worst", "dense"),
        *("explanations", "provenance", "submission"),
    ]
    assert values["texts"] == 23
    assert values["task"]["labels"] == ["bad", "dull", "good"]
    assert set(values["quality"]) == {"accuracy", "score"}
    assert len(values["timing"]["seconds"]) == len(values["dense"]["timing"]["seconds"]) == 2
    low, high = values["measured_range"]
    assert low - 1e-9 <= values["measured_speedup"] <= high + 1e-9
    assert len(values["worst"]) == 5 and len(values["explanations"]) == 5
    assert values["peak_memory_mb"] > 10
    assert values["provenance"]["data_fingerprint"] == "fingerprint of classification"
    assert values["provenance"]["machine"]["threads"] == torch.get_num_threads()
    assert values["elue"] is None, "there is no curve for this task"


def test_rounds_are_interleaved_over_a_part_of_the_texts(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    found = evaluate(save_hashed(tmp_path), make_task(), rounds=3, timed_texts=7, threads=1, quiet=True)
    assert found.timing is not None
    assert (found.timing.texts, len(found.timing.seconds)) == (7, 3)
    assert found.timing.texts_per_second == 7 / sorted(found.timing.seconds)[1]
    assert found.measured_speedup is None, "there is no dense model to compare with"
    assert torch.get_num_threads() == before
    assert found.provenance.machine["threads"] == 1


def test_texts_are_cut_as_they_were_in_the_fit(tmp_path: Path) -> None:
    data, folder = make_task(), save_hashed(tmp_path)
    assert quick(folder, data, max_length=5).cost.tokens <= 5 * 23 < quick(folder, data).cost.tokens
    run = {"settings": {"max_length": 5}, "backbone": {"layers": 12}, "data": {"fingerprint": "other"}}
    (folder / "run.json").write_text(json.dumps(run))
    found = quick(folder, data)
    assert found.cost.tokens <= 5 * 23
    assert found.model.full_layers == 12, "as much as the fit's backbone has"
    assert found.provenance.fitted_on == "other"
    assert max(len(each.tokens) for each in found.explanations) <= 5


@pytest.mark.parametrize("kind", [Kind.CLASSES, Kind.TAGS])
def test_other_backends_predict_the_same(kind: Kind, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    data, folder = make_task(kind), save_hashed(tmp_path / "torch", kind)
    expected = quick(folder, data)
    exported = hashee.export.export_onnx(hashee.load(folder), tmp_path / "onnx", tokenizer=make_tokenizer())
    for source in (folder, exported, hashee.load(exported, "onnx")):
        found = quick(source, data, backend="onnx")
        assert found.model.backend == "onnx"
        assert found.quality == expected.quality
        assert found.cost == expected.cost
    with pytest.raises(HasheeError, match="unknown backend 'tpu'"):
        quick(folder, data, backend="tpu")


def test_int8_is_evaluated_too(tmp_path: Path) -> None:
    if "fbgemm" not in torch.backends.quantized.supported_engines:
        pytest.skip("this build of torch has no int8 kernels for x86")
    data, folder = make_task(), save_hashed(tmp_path)
    found = quick(folder, data, quantize="int8")
    assert found.model.quantize == "int8"
    assert found.quality is not None and found.cost == quick(folder, data).cost
    with pytest.raises(HasheeError, match="is dense"):
        quick(save_dense(tmp_path / "dense"), data, quantize="int8")


def test_the_elue_score_of_the_point(tmp_path: Path) -> None:
    data = make_task()
    sst2 = replace(data, task=replace(data.task, name="sst2"))
    folder = save_hashed(tmp_path)
    found = quick(folder, sst2)
    cost = mflops_per_text(found.cost.paper_macs, found.cost.texts)
    assert found.elue == elue_score([(cost, 100 * (found.score or 0))])
    assert quick(folder, sst2, "dev").elue is None, "the curve is for test"


def test_settings_are_checked(tmp_path: Path) -> None:
    for changes, message in [
        ({"rounds": -1}, "rounds is -1; it must be at least 0"),
        ({"threads": 0}, "threads is 0"),
        ({"round": 2}, "there is no setting 'round'; the settings are split, dense"),
    ]:
        with pytest.raises(InputError, match=message):
            quick(tmp_path, make_task(), **changes)
