"""Documents put in order for one query after another."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hashee.data.batching import Batching
from hashee.data.output_types import OutputType
from hashee.errors import InputError
from hashee.evaluation.retrieval import CANDIDATES, embeddings_of
from hashee.hf.text_models import DOCUMENT, QUERY, TextModel


@dataclass(frozen=True)
class Ranker:
    """Documents, and the model that they are ranked with."""

    documents: Sequence[str]
    reranker: TextModel | None
    """None if the order of the embedder is the answer."""
    embedder: TextModel | None
    """None if a reranker scores all documents."""
    embeddings: NDArray[Any] | None
    """(documents, width) of the embedder."""
    batching: Batching

    @classmethod
    def over(cls, documents: Sequence[str], model: TextModel, candidates: TextModel | None, tokens: int) -> "Ranker":
        """Embed the documents where an embedder ranks them, or chooses what a reranker scores."""
        if OutputType.STATES in (model.output, candidates.output if candidates is not None else None):
            raise InputError("states of tokens are no embedding to rank by; choose another model")
        scores = model.output is OutputType.SCORE
        if candidates is not None and (not scores or candidates.output is not OutputType.EMBEDDING):
            raise InputError("candidates come from an embedder and are for a reranker; leave out --candidates")
        embedder = candidates if scores else model
        found = None if embedder is None else embeddings_of(embedder, documents, DOCUMENT)
        return cls(documents, model if scores else None, embedder, found, Batching(tokens=tokens))

    def ranking(self, query: str) -> list[tuple[int, float]]:
        """Return indices and scores of documents, the best first."""
        chosen = np.arange(len(self.documents))
        scores = np.zeros(len(self.documents))
        if self.embedder is not None and self.embeddings is not None:
            scores = self.embeddings @ embeddings_of(self.embedder, [query], QUERY)[0]
            chosen = np.argsort(-scores, kind="stable")
        if self.reranker is not None:
            chosen = chosen[:CANDIDATES] if self.embedder is not None else chosen
            pairs = [(query, self.documents[int(index)]) for index in chosen]
            found = np.array([row[-1] for row in self.reranker.outputs(pairs, self.batching)])
            order = np.argsort(-found, kind="stable")
            return [(int(chosen[index]), float(found[index])) for index in order]
        return [(int(index), float(scores[index])) for index in chosen]
