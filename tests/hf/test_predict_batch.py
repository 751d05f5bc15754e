"""What servers and clusters call: the answers of `predict` as a list, from models that travel to other processes."""

import multiprocessing
import pickle
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_predict import make_hashed, make_texts
from transformers import AutoModel, AutoModelForSeq2SeqLM, AutoModelForSequenceClassification

import hashee
from hashee.export import export_onnx

BACKENDS = ("torch", "onnx", "openvino")
SMALL = hashee.Batching(tokens=20, active=3, window=7)


@pytest.fixture(scope="module")
def opened(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """How to open one classifier on any backend."""
    model = make_hashed(tokenizer, AutoModelForSequenceClassification)
    folder = tmp_path_factory.mktemp("models")

    def open_on(backend: str) -> Any:
        path = folder / ("torch" if backend == "torch" else "exported")
        if backend != "torch":
            pytest.importorskip("onnx")
            pytest.importorskip("onnxruntime" if backend == "onnx" else backend)
        if not path.exists():
            model.save_pretrained(path) if backend == "torch" else export_onnx(model, path)
            tokenizer.save_pretrained(path)
        return hashee.load(path, backend=backend)

    return open_on


def answers_elsewhere(pickled: bytes, texts: list[str]) -> list[Any]:
    """Answer in a process that knows nothing but the pickle."""
    model = pickle.loads(pickled)
    return model.predict_batch(texts)


def same(ours: list[Any], theirs: list[Any], tolerance: float = 1e-6) -> bool:
    return len(ours) == len(theirs) and all(
        one.shape == other.shape and np.abs(one - other).max() <= tolerance
        for one, other in zip(ours, theirs, strict=True)
    )


@pytest.mark.parametrize("batching", [None, SMALL], ids=["big", "small"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_batch_is_answered_as_predict_does(opened: Any, backend: str, batching: Any) -> None:
    model, texts = opened(backend), make_texts(30, seed=1)
    ours = model.predict_batch(texts, batching=batching)
    assert isinstance(ours, list)
    assert same(ours, list(model.predict(texts, batching=batching, progress=False)))
    pairs = [(text or "cat", "the film") for text in texts]
    assert same(model.predict_batch(pairs), list(model.predict(pairs, progress=False)))
    assert model.predict_batch([]) == []


def test_states_of_tokens_are_answers_too(tokenizer: Any) -> None:
    model, texts = make_hashed(tokenizer, AutoModel), make_texts(9)
    assert same(model.predict_batch(texts), list(model.predict(texts, progress=False)))


def test_no_thread_and_no_bar(opened: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    model = opened("torch")
    capsys.readouterr()

    def refuse(*arguments: Any, **options: Any) -> None:
        raise AssertionError("a thread was started")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert len(model.predict_batch(make_texts(20), batching=SMALL)) == 20
    assert capsys.readouterr() == ("", "")


def test_opened_models_answer_in_other_processes(opened: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models, texts = [opened(backend) for backend in BACKENDS], make_texts(12)
    monkeypatch.chdir(tmp_path)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        for model in models:
            found = pool.apply_async(answers_elsewhere, (pickle.dumps(model), texts)).get(timeout=240)
            assert same(found, model.predict_batch(texts))


@pytest.mark.parametrize("backend", BACKENDS[1:])
def test_exports_are_pickled_as_their_folder(
    opened: Any, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(opened(backend).folder, tmp_path / "here" / "model")
    monkeypatch.chdir(tmp_path / "here")
    model = hashee.load("model", backend=backend, threads=1)
    pickled = pickle.dumps(model)
    # From anywhere, whatever the path that it was opened by.
    monkeypatch.chdir(tmp_path)
    again = pickle.loads(pickled)
    assert type(again) is type(model) and again.folder == folder
    assert again._opening == model._opening == (folder, 1)
    assert same(again.predict_batch(["the film"]), model.predict_batch(["the film"]))


def test_a_folder_that_holds_another_model_is_no_longer_the_pickled_one(
    opened: Any, tokenizer: Any, tmp_path: Path
) -> None:
    opened("onnx")
    folder = export_onnx(make_hashed(tokenizer, AutoModelForSequenceClassification), tmp_path / "model")
    pickled = pickle.dumps(hashee.load(folder, backend="onnx"))
    export_onnx(make_hashed(tokenizer, AutoModel), folder)
    with pytest.raises(hashee.CheckpointError, match="holds another model than the one that was pickled"):
        pickle.loads(pickled)
    shutil.rmtree(folder)
    with pytest.raises(hashee.HasheeError, match="model"):
        pickle.loads(pickled)


def test_quantized_models_travel(opened: Any) -> None:
    model, texts = hashee.quantize(opened("torch")), make_texts(12)
    assert same(pickle.loads(pickle.dumps(model)).predict_batch(texts), model.predict_batch(texts))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["fine", "fine", 3], "texts must be strings or pairs of strings; text 2 is int"),
        (["fine", None], "text 1 is NoneType"),
        ([("a", "b"), ("a", 1)], "text 1 holds int"),
        (["fine", "\ud800"], "text 1 holds half of a surrogate pair"),
        ([("a", "b"), "c"], "text 1 is one text where text 0 is a pair"),
        (["a", "b", ("c", "d")], "text 2 is a pair where text 0 is one text"),
        ("the film", r"takes a list of texts, not str; pass \[text\]"),
        (Path("texts.txt"), "takes a list of texts, not PosixPath"),
    ],
)
def test_bad_texts_are_named_by_their_index(opened: Any, backend: str, texts: Any, message: str) -> None:
    with pytest.raises(hashee.InputError, match=message):
        opened(backend).predict_batch(texts)


def test_indices_go_on_from_one_window_to_the_next(opened: Any) -> None:
    texts = [*make_texts(9), 5]
    with pytest.raises(hashee.InputError, match="text 9 is int"):
        opened("torch").predict_batch(texts, batching=SMALL)
    with pytest.raises(hashee.InputError, match="text 8 is a pair where text 7 is one text"):
        opened("torch").predict_batch(["a"] * 8 + [("b", "c")], batching=SMALL)


def test_models_that_write_text_are_refused(tokenizer: Any) -> None:
    with pytest.raises(hashee.UnsupportedModel, match="generate"):
        make_hashed(tokenizer, AutoModelForSeq2SeqLM, "bart").predict_batch(["the film"])
