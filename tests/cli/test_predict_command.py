"""`hashee predict MODEL IN OUT`: the library's answers, in order, as labels, scores, tags or states."""

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    pipeline,
)

import hashee
from architectures import make_model
from hashee.cli import main

TEXTS = [
    "the film is a quiet masterpiece",
    "dull",
    "the plot is dull and the film is long",
    "a good film , never again",
]
NAMES = {"id2label": {0: "bad", 1: "good"}, "label2id": {"bad": 0, "good": 1}}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run `hashee ...` in this process and return exit code, standard output and standard error."""

    def run_command(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["hashee", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        captured = capsys.readouterr()
        return int(stopped.value.code or 0), captured.out, captured.err

    return run_command


def save(tokenizer: Any, folder: Path, auto_class: Any, **config: Any) -> Any:
    """Save a converted model and its tokenizer, and return the model."""
    dense = make_model("bert", auto_class, vocab_size=len(tokenizer), **config)
    table = hashee.ExitTable.by_frequency(tokenizer, TEXTS, num_layers=4, progress=False)
    model = hashee.convert(dense, table, tokenizer=tokenizer)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("\n".join([TEXTS[0], "", *TEXTS[1:]]) + "\n")
    return path


def lines_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def softmax(logits: Any) -> Any:
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def test_classifiers_give_labels_as_the_pipeline_does(run: Any, tokenizer: Any, texts: Path, tmp_path: Path) -> None:
    save(tokenizer, tmp_path / "model", AutoModelForSequenceClassification, **NAMES)
    code, out, err = run("predict", tmp_path / "model", texts, tmp_path / "new" / "out.jsonl", "--batch-tokens", 16)
    assert (code, out) == (0, ""), err
    answers = lines_of((tmp_path / "new" / "out.jsonl").read_text())
    expected = pipeline("text-classification", model=str(tmp_path / "model"))(TEXTS)
    # The line without a text has no answer, and those after it keep their numbers.
    assert [answer["line"] for answer in answers] == [1, 3, 4, 5]
    for answer, other in zip(answers, expected, strict=True):
        assert answer["label"] == other["label"] and answer["score"] == pytest.approx(other["score"], abs=1e-5)
        assert sum(answer["scores"].values()) == pytest.approx(1) and set(answer["scores"]) == {"bad", "good"}


@pytest.mark.parametrize("backend", ["torch", "onnx", "openvino", "int8"])
def test_backends_agree(run: Any, tokenizer: Any, texts: Path, tmp_path: Path, backend: str) -> None:
    model = save(tokenizer, tmp_path / "model", AutoModelForSequenceClassification, **NAMES)
    folder, options = tmp_path / "model", ["--backend", backend]
    if backend == "int8":
        options = ["--quantize", "int8"]
    elif backend != "torch":
        pytest.importorskip("onnxruntime" if backend == "onnx" else backend)
        folder = hashee.export.export_onnx(model, tmp_path / "exported")
    code, out, err = run("predict", folder, texts, *options, "--threads", 1)
    assert code == 0, err
    for answer, logits in zip(lines_of(out), model.predict(TEXTS, progress=False), strict=True):
        expected = softmax(logits)[1]
        assert answer["scores"]["good"] == pytest.approx(expected, abs=0.05 if backend == "int8" else 1e-4)


def test_regression_and_several_labels(run: Any, tokenizer: Any, texts: Path, tmp_path: Path) -> None:
    model = save(tokenizer, tmp_path / "score", AutoModelForSequenceClassification, num_labels=1)
    code, out, err = run("predict", tmp_path / "score", texts)
    assert code == 0, err
    for answer, logits in zip(lines_of(out), model.predict(TEXTS, progress=False), strict=True):
        assert answer.keys() == {"line", "score"} and answer["score"] == pytest.approx(logits[0], abs=1e-5)
    several = {"problem_type": "multi_label_classification"}
    model = save(tokenizer, tmp_path / "several", AutoModelForSequenceClassification, **several, **NAMES)
    code, out, err = run("predict", tmp_path / "several", texts)
    assert code == 0, err
    for answer, logits in zip(lines_of(out), model.predict(TEXTS, progress=False), strict=True):
        assert answer["labels"] == [name for name, logit in zip(("bad", "good"), logits, strict=True) if logit > 0]
        assert answer["scores"]["bad"] == pytest.approx(1 / (1 + np.exp(-logits[0])), abs=1e-5)


def test_taggers_give_a_tag_for_every_word(run: Any, tokenizer: Any, texts: Path, tmp_path: Path) -> None:
    model = save(tokenizer, tmp_path / "model", AutoModelForTokenClassification, **NAMES)
    long = " ".join(["film"] * 60)
    texts.write_text("\n".join([*TEXTS, long]))
    code, out, err = run("predict", tmp_path / "model", texts)
    assert code == 0, err
    answers = lines_of(out)
    for answer, text in zip(answers, TEXTS, strict=False):
        assert answer["words"] == text.split()
        logits = next(model.predict([text], progress=False))
        encoded = tokenizer(text.split(), is_split_into_words=True)
        firsts = [encoded.word_to_tokens(number).start for number in range(len(answer["words"]))]
        assert answer["tags"] == [("bad", "good")[row.argmax()] for row in logits[firsts]]
        assert answer["scores"] == pytest.approx([row.max() for row in softmax(logits[firsts])], abs=1e-5)
    # The model takes 40 positions, two of them for special tokens; words beyond have no tag.
    assert answers[-1]["words"] == long.split()
    assert [tag is None for tag in answers[-1]["tags"]] == [number >= 38 for number in range(60)]


def test_encoders_give_states(run: Any, tokenizer: Any, texts: Path, tmp_path: Path) -> None:
    model = save(tokenizer, tmp_path / "model", AutoModel)
    code, out, err = run("predict", tmp_path / "model", texts)
    assert code == 0, err
    for answer, states in zip(lines_of(out), model.predict(TEXTS, progress=False), strict=True):
        assert np.abs(np.array(answer["states"]) - states).max() <= 1e-5


def test_columns_pairs_and_compressed_files(run: Any, tokenizer: Any, tmp_path: Path) -> None:
    model = save(tokenizer, tmp_path / "model", AutoModelForSequenceClassification, **NAMES)
    rows = tmp_path / "rows.jsonl.gz"
    rows.write_bytes(gzip.compress("\n".join(json.dumps({"a": text, "b": "film"}) for text in TEXTS).encode()))
    out = tmp_path / "out.jsonl.gz"
    code, _, err = run("predict", tmp_path / "model", rows, out, "--column", "a", "--pair-column", "b")
    assert code == 0, err
    pairs = [(text, "film") for text in TEXTS]
    answers = lines_of(gzip.decompress(out.read_bytes()).decode())
    for answer, logits in zip(answers, model.predict(pairs, progress=False), strict=True):
        assert answer["scores"]["good"] == pytest.approx(softmax(logits)[1], abs=1e-4)


def test_what_cannot_be_done_is_one_line_and_writes_nothing(
    run: Any, tokenizer: Any, texts: Path, tmp_path: Path
) -> None:
    save(tokenizer, tmp_path / "model", AutoModelForSequenceClassification, **NAMES)
    save(tokenizer, tmp_path / "words", AutoModelForMaskedLM)
    (tmp_path / "half.jsonl").write_text('{"text": "fine"}\n{"text": "\\ud800"}\n')
    out = tmp_path / "out.jsonl"
    for arguments, says in [
        ([tmp_path / "nowhere", texts, out], "config.json"),
        ([tmp_path / "model", tmp_path / "nowhere.txt", out], "does not exist"),
        ([tmp_path / "model", tmp_path / "half.jsonl", out], "half.jsonl, line 2: the text holds half"),
        ([tmp_path / "model", texts, tmp_path], "holds other files and no manifest.json"),
        ([tmp_path / "model", texts, texts], "is the file that is read"),
        ([tmp_path / "model", texts, out, "--backend", "onnx"], "hashee_onnx.json"),
        ([tmp_path / "words", texts, out], "ForMaskedLM gives neither labels"),
    ]:
        code, _, err = run("predict", *arguments)
        assert code == 2 and err.startswith("error: ") and err.count("\n") == 1 and says in err, err
        assert not out.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["half.jsonl", "model", "texts.txt", "words"]
