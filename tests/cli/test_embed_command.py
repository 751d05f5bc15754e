"""`hashee embed` and `hashee rank`: every format, in order, and on again after a kill."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hashee.cli import main
from hashee.hf.predict import Scorer
from hashee.hf.text_models import open_text_model
from tiny_text_models import make_folder, make_texts

TEXTS = make_texts(40)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="module")
def scorer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("scorer"), scores=True)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("\n\n".join(TEXTS), encoding="utf-8")  # every other line is empty
    return path


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def run_command(*arguments: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["hashee", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        code = stopped.value.code
        return (0 if code is None else int(code)), capsys.readouterr().err

    return run_command


def read(path: Path) -> np.ndarray:
    if path.suffix == ".npy":
        return np.load(path)
    if path.suffix == ".parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        table = parquet.read_table(path)
        assert table.column("line").to_pylist() == list(range(1, 80, 2))
        return np.array(table.column("embedding").to_pylist())
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["line"] for row in rows] == list(range(1, 80, 2))
    return np.array([row["embedding"] for row in rows])


@pytest.mark.parametrize("ending", ["npy", "parquet", "jsonl"])
def test_embeddings_are_in_order_and_a_killed_run_goes_on(
    ending: str, run: Any, encoder: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = np.stack(list(open_text_model(encoder).outputs(TEXTS)))
    out = tmp_path / f"out.{ending}"
    assert run("embed", encoder, texts, out)[0] == 0
    assert np.abs(read(out) - expected).max() <= 1e-5
    before = read(out)
    out.unlink()

    # Windows of ten texts, of which the third fails.
    from hashee.data import batching
    from hashee.hf import predict

    windows, runs = batching.Batching, [0]
    kept = predict._run_window

    def failing(scorer: Scorer, window: Any, *rest: Any) -> Any:
        runs[0] += 1
        if runs[0] == 4:  # the first is a text on its own, for the width
            raise KeyboardInterrupt
        return kept(scorer, window, *rest)

    monkeypatch.setattr(batching, "Batching", lambda tokens, window: windows(tokens, window=10))
    with monkeypatch.context() as patch:
        patch.setattr(predict, "_run_window", failing)
        assert run("embed", encoder, texts, out)[0] == 130
    assert not out.exists() and out.with_name(f"{out.name}.part").exists()
    code, err = run("embed", encoder, texts, out)
    assert code == 2 and "--resume" in err
    code, err = run("embed", encoder, texts, out, "--resume", "--batch-tokens", 7)
    assert code == 2 and "begun with another batch_tokens" in err
    code, err = run("embed", encoder, texts, out, "--resume")
    assert code == 0 and "going on behind 20 texts" in err
    assert np.abs(read(out) - before).max() <= 1e-6
    assert not list(tmp_path.glob("*.part*"))
    assert "is complete" in run("embed", encoder, texts, out, "--resume")[1]


def test_rankings_of_an_embedder_and_of_a_reranker(
    run: Any, encoder: Path, scorer: Path, texts: Path, tmp_path: Path
) -> None:
    queries, out = tmp_path / "queries.txt", tmp_path / "out.jsonl"
    queries.write_text("\n".join(TEXTS[:3]), encoding="utf-8")
    assert run("rank", encoder, queries, texts, out, "--top", 4)[0] == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["line"] for row in rows] == [1, 2, 3]
    for number, row in enumerate(rows):
        assert [len(row["documents"]), row["documents"][0]["line"]] == [4, 2 * number + 1]
        assert row["documents"][0]["score"] == pytest.approx(1, abs=1e-5)
        assert [each["score"] for each in row["documents"]] == sorted(
            (each["score"] for each in row["documents"]), reverse=True
        )
    model = open_text_model(scorer)
    for more in ((), ("--candidates", encoder)):
        assert run("rank", scorer, queries, texts, out, *more)[0] == 0
        row = json.loads(out.read_text().splitlines()[0])
        scores = np.stack(list(model.outputs([(TEXTS[0], text) for text in TEXTS])))[:, 0]
        best = np.argsort(-scores, kind="stable")[:10]
        assert [each["line"] for each in row["documents"]] == [2 * index + 1 for index in best]


def test_bad_input_is_one_line(run: Any, encoder: Path, scorer: Path, texts: Path, tmp_path: Path) -> None:
    for arguments, message in (
        (("embed", encoder, texts, tmp_path / "out.csv"), "the name must end in"),
        (("embed", scorer, texts, tmp_path / "out.npy"), "gives no embeddings"),
        (("embed", encoder, texts, tmp_path / "out.npy", "--prompt", "query"), "no prompt 'query'"),
        (("embed", encoder, texts, texts), "is the file that is read"),
        (("rank", encoder, texts, texts, tmp_path / "out.jsonl", "--candidates", encoder), "leave out --candidates"),
    ):
        code, err = run(*arguments)
        assert code == 2 and message in err and err.count("\n") == 1, err
