"""Retrieval and similarity: metrics equal those computed by hand, folders are read in every layout, models rank."""

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr  # type: ignore[import-untyped]
from sklearn.metrics import ndcg_score

from hashee.cli import main
from hashee.data.retrieval import RetrievalData, read_retrieval
from hashee.errors import InputError
from hashee.evaluation.retrieval import evaluate_retrieval, ranking_metrics
from hashee.evaluation.similarity import evaluate_sts
from hashee.hf.text_models import open_text_model
from tiny_text_models import make_folder, make_texts, write_lines

DOCUMENTS = make_texts(120)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="module")
def scorer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("scorer"), scores=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A collection in which the query with number n asks for document n, word by word, and a little for the next."""
    write_lines(
        tmp_path / "corpus.jsonl",
        [{"_id": f"d{number}", "title": "", "text": text} for number, text in enumerate(DOCUMENTS)],
    )
    write_lines(tmp_path / "queries.jsonl", [{"_id": f"q{n}", "text": DOCUMENTS[n]} for n in range(6)])
    (tmp_path / "qrels").mkdir()
    rows = [f"q{n}\td{n}\t2\nq{n}\td{n + 1}\t1" for n in range(5)]  # nobody judged q5
    (tmp_path / "qrels" / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *rows]) + "\n")
    return tmp_path


def test_metrics_are_those_of_the_definitions() -> None:
    random = np.random.default_rng(0)
    names = [f"d{number}" for number in range(30)]
    relevance = {f"q{n}": dict(zip(names, random.integers(0, 4, size=30).astype(float), strict=True)) for n in range(8)}
    data = RetrievalData(dict.fromkeys(names, ""), dict.fromkeys(relevance, ""), relevance)
    scores = random.normal(size=(8, 30))
    rankings = [[names[index] for index in np.argsort(-row)] for row in scores]
    found = ranking_metrics(rankings, data)
    gold = np.array([list(each.values()) for each in relevance.values()])
    assert found["ndcg@10"] == pytest.approx(ndcg_score(gold, scores, k=10))
    tops = [
        [relevance[query][name] > 0 for name in ranking[:10]]
        for query, ranking in zip(relevance, rankings, strict=True)
    ]
    assert found["mrr@10"] == pytest.approx(np.mean([1 / (top.index(True) + 1) for top in tops]))
    assert found["recall@10"] == pytest.approx(
        np.mean([sum(t) / (g > 0).sum() for t, g in zip(tops, gold, strict=True)])
    )


def test_nothing_found_is_zero() -> None:
    data = RetrievalData({"a": "", "b": ""}, {"q": ""}, {"q": {"a": 1.0}})
    assert ranking_metrics([["b"]], data) == {"ndcg@10": 0.0, "mrr@10": 0.0, "recall@10": 0.0}


def test_an_embedder_finds_the_documents_that_are_the_queries(encoder: Path, folder: Path) -> None:
    found = evaluate_retrieval(encoder, folder, dense=encoder)
    assert found["mrr@10"] == 1.0 and found["queries"] == 5 and found["documents"] == 120
    assert found["dense"] == {name: found[name] for name in ("ndcg@10", "mrr@10", "recall@10")}
    assert evaluate_retrieval(encoder, folder, queries=2)["queries"] == 2


def test_a_reranker_orders_the_candidates_of_an_embedder(encoder: Path, scorer: Path, folder: Path) -> None:
    found = evaluate_retrieval(scorer, folder, candidates=encoder)
    embedder, model = open_text_model(encoder), open_text_model(scorer)
    documents = np.stack(list(embedder.outputs(DOCUMENTS)))
    documents /= np.linalg.norm(documents, axis=1, keepdims=True)
    reciprocal = []
    for number in range(5):
        near = np.argsort(-documents @ documents[number], kind="stable")[:100]
        scores = np.stack(list(model.outputs([(DOCUMENTS[number], DOCUMENTS[each]) for each in near])))[:, 0]
        ranked = near[np.argsort(-scores, kind="stable")][:10].tolist()
        ranks = [ranked.index(each) + 1 for each in (number, number + 1) if each in ranked]
        reciprocal.append(1 / min(ranks) if ranks else 0.0)
    assert found["mrr@10"] == pytest.approx(np.mean(reciprocal))
    with pytest.raises(InputError, match="candidates must come from an embedder"):
        evaluate_retrieval(scorer, folder, candidates=scorer)


def test_titles_come_first_and_json_judgements_are_read(folder: Path) -> None:
    (folder / "qrels" / "test.tsv").unlink()
    write_lines(folder / "qrels.jsonl", [{"query": "q1", "doc": "d1", "relevance": 4}])
    rows = [{"_id": "d1", "title": "wing", "text": "lift"}, {"_id": "d2", "title": "a b", "text": "a b . c"}]
    write_lines(folder / "corpus.jsonl", rows)
    data = read_retrieval(folder)
    assert data.documents == {"d1": "wing lift", "d2": "a b . c"}
    assert list(data.queries) == ["q1"] and data.relevance == {"q1": {"d1": 4.0}}


def test_bad_folders_are_one_line(folder: Path) -> None:
    with pytest.raises(InputError, match="is no folder"):
        read_retrieval(folder / "nowhere")
    write_lines(folder / "qrels" / "x.jsonl", [])
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\tnobody\t1\n")
    with pytest.raises(InputError, match="document 'nobody', which is not there"):
        read_retrieval(folder)
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\thigh\n")
    with pytest.raises(InputError, match="relevance 'high' is no number"):
        read_retrieval(folder)
    (folder / "qrels" / "test.tsv").unlink()
    with pytest.raises(InputError, match=r"no qrels/test\.tsv"):
        read_retrieval(folder)
    (folder / "corpus.jsonl").unlink()
    with pytest.raises(InputError, match=r"no corpus\.jsonl"):
        read_retrieval(folder)


def test_similarity_is_ranked_beside_what_people_said(encoder: Path, scorer: Path, tmp_path: Path) -> None:
    rows = [
        {"sentence1": one, "sentence2": other, "score": number % 5}
        for number, (one, other) in enumerate(zip(DOCUMENTS[:20], DOCUMENTS[20:40], strict=True))
    ]
    path = write_lines(tmp_path / "sts.jsonl", rows)
    gold = [row["score"] for row in rows]
    model = open_text_model(encoder)
    one, other = (np.stack(list(model.outputs([row[f"sentence{n}"] for row in rows]))) for n in (1, 2))
    cosines = (one * other).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)
    found = evaluate_sts(encoder, path, dense=scorer)
    assert found["spearman"] == pytest.approx(spearmanr(cosines, gold).statistic) and found["pairs"] == 20
    assert -1 <= found["dense"]["spearman"] <= 1
    write_lines(path, [{"text": "a", "score": 1}] * 4)
    with pytest.raises(InputError, match="single texts"):
        evaluate_sts(encoder, path)


def test_the_command_prints_the_metrics(
    encoder: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", ["hashee", "evaluate", str(encoder), *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        captured = capsys.readouterr()
        assert not stopped.value.code, captured.err
        return captured.out

    found: dict[str, Any] = json.loads(run("--retrieval", folder, "--json", "--dense", encoder))
    assert {"ndcg@10", "mrr@10", "recall@10", "dense"} <= found.keys()
    assert "ndcg@10" in run("--retrieval", folder)
    rows = [{"sentence1": a, "sentence2": b, "score": n} for n, (a, b) in enumerate(pairwise(DOCUMENTS))]
    sts = write_lines(folder / "sts.jsonl", rows)
    assert "spearman" in json.loads(run("--sts", sts, "--json"))
