"""Retrieval in BEIR's layout: a folder of a corpus, queries and judgements of which documents answer them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hashee.data.row_files import location_of
from hashee.data.texts import read_rows
from hashee.errors import InputError

_QRELS = (("query-id", "corpus-id", "score"), ("query", "doc", "relevance"), ("query_id", "doc_id", "relevance"))
"""Columns of judgements, in the order in which they are tried."""


@dataclass(frozen=True)
class RetrievalData:
    """Documents, the queries that there are judgements for, and these."""

    documents: dict[str, str]
    """Text of each document, its title first, by id."""
    queries: dict[str, str]
    """Text of each query by id."""
    relevance: dict[str, dict[str, float]]
    """By query and document; what is not there is 0."""


def read_retrieval(folder: Path, queries: int | None = None) -> RetrievalData:
    """Read corpus.jsonl, queries.jsonl and qrels (qrels/test.tsv, or qrels.jsonl, .tsv), each also `.gz`.

    queries: keep the first so many of those with judgements.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder; name one with corpus.jsonl, queries.jsonl and qrels")
    documents = _texts(_named(folder, "corpus"))
    asked = _texts(_named(folder, "queries"))
    relevance = _judgements(_qrels(folder))
    for name, known, found in (("query", asked, relevance), ("document", documents, _judged(relevance))):
        unknown = next((each for each in found if each not in known), None)
        if unknown is not None:
            raise InputError(f"the judgements in {folder} are about the {name} {unknown!r}, which is not there")
    judged = [query for query in asked if any(value > 0 for value in relevance.get(query, {}).values())][:queries]
    if not judged:
        raise InputError(f"no query in {folder} has a relevant document, so nothing can be judged")
    return RetrievalData(documents, {query: asked[query] for query in judged}, relevance)


def _named(folder: Path, name: str) -> Path:
    for ending in (".jsonl", ".jsonl.gz", ".parquet"):
        if (folder / f"{name}{ending}").is_file():
            return folder / f"{name}{ending}"
    raise InputError(f"{folder} has no {name}.jsonl; BEIR's layout is corpus.jsonl, queries.jsonl and qrels/test.tsv")


def _qrels(folder: Path) -> Path:
    files = sorted((folder / "qrels").glob("*.tsv*")) if (folder / "qrels").is_dir() else []
    files += [
        folder / f"qrels{ending}" for ending in (".tsv", ".jsonl", ".jsonl.gz") if (folder / f"qrels{ending}").is_file()
    ]
    chosen = [file for file in files if file.name.startswith("test.")] or files
    if not chosen:
        raise InputError(f"{folder} has no qrels/test.tsv, which says what documents answer a query")
    if len(chosen) > 1:
        raise InputError(
            f"{folder} has several files of judgements ({', '.join(each.name for each in chosen)}) and no test.tsv"
        )
    return chosen[0]


def _texts(path: Path) -> dict[str, str]:
    """Return the texts of a file by id, with titles before them where there are any."""
    has_title = False

    def choose(columns: Any) -> tuple[str, ...]:
        nonlocal has_title
        has_title = "title" in columns
        for name in ("_id", "text"):
            if name not in columns:
                raise InputError(f"{path} has no column {name!r}; its columns are: {', '.join(columns)}")
        return ("_id", "text", "title") if has_title else ("_id", "text")

    found: dict[str, str] = {}
    for number, (name, text, *titles) in read_rows(path, choose):
        if not isinstance(text, str):
            raise InputError(f"{location_of(path, number)}: the text is of type {type(text).__name__}")
        title = str(titles[0] or "") if titles else ""
        # Some collections repeat the title at the beginning of the text.
        found[str(name)] = text if text.startswith(title) else f"{title} {text}"
    if not found:
        raise InputError(f"{path} is empty")
    return found


def _judgements(path: Path) -> dict[str, dict[str, float]]:
    def choose(columns: Any) -> tuple[str, ...]:
        for names in _QRELS:
            if set(names) <= set(columns):
                return names
        raise InputError(f"{path} has the columns {', '.join(columns)}; judgements have {', '.join(_QRELS[0])}")

    relevance: dict[str, dict[str, float]] = {}
    for number, (query, document, value) in read_rows(path, choose):
        try:
            relevance.setdefault(str(query), {})[str(document)] = float(value)
        except (TypeError, ValueError):
            raise InputError(f"{location_of(path, number)}: the relevance {value!r} is no number") from None
    return relevance


def _judged(relevance: dict[str, dict[str, float]]) -> list[str]:
    return [document for each in relevance.values() for document, value in each.items() if value > 0]
