"""Retrieval with an embedder over all documents, or with a reranker over the candidates of an embedder."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hashee.data.output_types import OutputType
from hashee.data.retrieval import RetrievalData, read_retrieval
from hashee.errors import InputError
from hashee.hf.text_models import DOCUMENT, EMBEDDED, QUERY, TextModel, as_text_model, open_text_model, with_prompts

Array = NDArray[Any]
CUT = 10
"""Documents of a ranking that are judged."""
CANDIDATES = 100
"""Documents of each query that a reranker puts in order."""


def evaluate_retrieval(
    model: Any,
    folder: str | Path,
    *,
    dense: Any = None,
    candidates: Any = EMBEDDED,
    queries: int | None = None,
) -> dict[str, Any]:
    """Return ndcg@10, mrr@10 and recall@10 of a model on a folder in BEIR's layout, and of a dense one as `dense`.

    model, dense, candidates: folders, Hub ids or objects; candidates: the embedder whose top 100 a reranker puts in
    order. queries: judge the first so many only.
    """
    data = read_retrieval(Path(folder), queries)
    opened = [_opened(each) for each in (model, dense) if each is not None]
    shortlist: list[list[str]] | None = None
    if any(each.output is OutputType.SCORE for each in opened):
        embedder = _opened(candidates)
        if embedder.output is not OutputType.EMBEDDING:
            raise InputError("candidates must come from an embedder; name one with --candidates")
        shortlist = rankings_by_embedding(embedder, data, CANDIDATES)
    judged = [ranking_metrics(_rankings(each, data, shortlist), data) for each in opened]
    found: dict[str, Any] = judged[0] | {"queries": len(data.queries), "documents": len(data.documents)}
    return found if len(judged) == 1 else found | {"dense": judged[1]}


def _opened(model: Any) -> TextModel:
    return open_text_model(model) if isinstance(model, str | Path) else as_text_model(model)


def _rankings(model: TextModel, data: RetrievalData, shortlist: list[list[str]] | None) -> list[list[str]]:
    if model.output is OutputType.SCORE:
        assert shortlist is not None
        return rankings_by_score(model, data, shortlist)
    if model.output is OutputType.STATES:
        raise InputError("states of tokens are no embedding to retrieve by; choose a pooling")
    return rankings_by_embedding(model, data, CUT)


def rankings_by_embedding(model: TextModel, data: RetrievalData, most: int) -> list[list[str]]:
    """Return the nearest documents of each query, the nearest first; as many as `most`."""
    documents = embeddings_of(model, list(data.documents.values()), DOCUMENT)
    queries = embeddings_of(model, list(data.queries.values()), QUERY)
    names = list(data.documents)
    # A stable order, so that equal documents come in that of the corpus.
    return [[names[index] for index in np.argsort(-row, kind="stable")[:most]] for row in queries @ documents.T]


def rankings_by_score(model: TextModel, data: RetrievalData, shortlist: list[list[str]]) -> list[list[str]]:
    """Return the candidates of each query in the order of their scores."""
    pairs = [
        (text, data.documents[name])
        for text, names in zip(data.queries.values(), shortlist, strict=True)
        for name in names
    ]
    scores = np.array([row[-1] for row in model.outputs(pairs)])
    rankings, first = [], 0
    for names in shortlist:
        order = np.argsort(-scores[first : first + len(names)], kind="stable")
        rankings.append([names[index] for index in order])
        first += len(names)
    return rankings


def embeddings_of(model: TextModel, texts: Sequence[str], prompt: str) -> Array:
    """Return the embeddings of texts as they are compared: of length 1 where only their direction matters."""
    found = np.stack(list(model.outputs(with_prompts(texts, [model.prompt(prompt)]))))
    if model.is_normalized:
        found = found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12)
    return found


def ranking_metrics(rankings: Sequence[Sequence[str]], data: RetrievalData) -> dict[str, float]:
    """Return the means over queries of nDCG, of the reciprocal rank of the first relevant document, and of recall."""
    rows = []
    for query, ranking in zip(data.queries, rankings, strict=True):
        relevance = data.relevance[query]
        gains = np.array([max(relevance.get(name, 0.0), 0.0) for name in ranking[:CUT]])
        ideal = np.sort([value for value in relevance.values() if value > 0])[::-1]
        hits = np.flatnonzero(gains)
        rows.append(
            (
                _discounted(gains) / _discounted(ideal[:CUT]),
                1 / (hits[0] + 1) if len(hits) else 0.0,
                len(hits) / len(ideal),
            )
        )
    names = (f"ndcg@{CUT}", f"mrr@{CUT}", f"recall@{CUT}")
    return dict(zip(names, np.mean(rows, axis=0).tolist(), strict=True))


def _discounted(gains: Array) -> float:
    """Return the gains in order, each divided by the logarithm of its rank, summed. gains: (documents,)."""
    return float((gains / np.log2(np.arange(2, len(gains) + 2))).sum())
