"""`hashee embed` and `hashee rank`: texts in, embeddings or rankings out; a run that was killed goes on."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from hashee.cli.predict import Input, check_output
from hashee.cli.shared import Column
from hashee.errors import InputError

_Model = Annotated[str, typer.Argument(help="Folder or Hub id of a model, with exits or dense, or minilm.")]
_Embeddings = Annotated[Path, typer.Argument(metavar="OUT", help="File to write: .npy, .parquet, .jsonl or .jsonl.gz.")]
_Queries = Annotated[Path, typer.Argument(metavar="QUERIES", help="File of queries, as IN of hashee embed.")]
_Documents = Annotated[Path, typer.Argument(metavar="DOCUMENTS", help="File of documents.")]
_Rankings = Annotated[Path, typer.Argument(metavar="OUT", help="File to write: .jsonl or .jsonl.gz.")]
_Prompt = Annotated[str | None, typer.Option(help="Name of one of the model's prompts; default: its own.")]
_Pooling = Annotated[str | None, typer.Option(help="Of plain encoders: mean or cls; default mean.")]
_Tokens = Annotated[int, typer.Option(help="Tokens that run at once.", min=1)]
_Threads = Annotated[int | None, typer.Option(help="Threads to run on; default: torch's.", min=1)]
_Resume = Annotated[bool, typer.Option("--resume", help="Go on with what was interrupted.")]
_Top = Annotated[int, typer.Option(help="Documents of a ranking that are written.", min=1)]
_Candidates = Annotated[str | None, typer.Option(help="Embedder whose nearest 100 a reranker scores; default: all.")]
_NUMBERS = 6
"""Digits of scores in rankings."""


def embed(
    model: _Model,
    texts: Input,
    output: _Embeddings,
    column: Column = None,
    prompt: _Prompt = None,
    pooling: _Pooling = None,
    batch_tokens: _Tokens = 2048,
    threads: _Threads = None,
    resume: _Resume = False,
) -> None:
    """Write the embedding of every text of a file, in their order, as .npy, .parquet or lines of JSON."""
    check_output(output, texts)
    _check_ending(output, (".npy", ".parquet", ".jsonl", ".jsonl.gz"))
    next(_rows(texts, column), None)  # a missing column is told before the model is opened
    from hashee.data.batching import Batching
    from hashee.data.output_types import OutputType
    from hashee.hf.written_files import LineFile, VectorFile, file_digest

    opened = _open(model, threads, pooling)
    if opened.output is not OutputType.EMBEDDING:
        raise InputError(f"{model} gives no embeddings but a {opened.output}; use hashee rank or hashee predict")
    before = opened.prompt_called(prompt)
    about: dict[str, Any] = {"model": _identity(model), "input": file_digest(texts), "column": column, "prompt": before}
    about |= {"pooling": pooling, "batch_tokens": batch_tokens}
    unit = _unit(texts)
    width = len(next(iter(opened.outputs([before]))))
    lines = output.suffix not in (".npy", ".parquet")
    file = LineFile(output, about) if lines else VectorFile(output, about, width=width, numbered=unit)
    done = _begin(file, resume)
    if done is None:
        return

    def embeddings(rows: Iterable[tuple[int, str]]) -> Iterator[Any]:
        texts_alone = (before + text for _, text in rows)
        yield from opened.outputs(texts_alone, Batching(tokens=batch_tokens, window=1024), progress=True)

    if isinstance(file, VectorFile):
        rest = _rows(texts, column)
        for _ in range(done):
            next(rest)
        file.write_vectors(embeddings(rest), lambda: (number for number, _ in _rows(texts, column)))
        return

    def as_lines(rows: Iterator[tuple[int, str]]) -> Iterator[dict[str, Any]]:
        numbers: list[int] = []

        def noted() -> Iterator[tuple[int, str]]:
            for row in rows:
                numbers.append(row[0])
                yield row

        for index, vector in enumerate(embeddings(noted())):
            yield {unit: numbers[index], "embedding": [float(value) for value in vector]}

    file.write(_rows(texts, column), done, as_lines)


def rank(
    model: _Model,
    queries: _Queries,
    documents: _Documents,
    output: _Rankings,
    column: Column = None,
    top: _Top = 10,
    candidates: _Candidates = None,
    batch_tokens: _Tokens = 2048,
    threads: _Threads = None,
    resume: _Resume = False,
) -> None:
    """Rank the documents of a file for every query of another, with an embedder or a reranker."""
    for read in (queries, documents):
        check_output(output, read)
    _check_ending(output, (".jsonl", ".jsonl.gz"))
    next(_rows(queries, column), None)
    found = list(_rows(documents, column))
    if not found:
        raise InputError(f"{documents} holds no documents; name a file of texts")
    from hashee.evaluation.ranking import Ranker
    from hashee.hf.written_files import LineFile, file_digest

    about: dict[str, Any] = {
        "model": _identity(model),
        "queries": file_digest(queries),
        "documents": file_digest(documents),
    }
    about |= {"column": column, "top": top, "candidates": candidates, "batch_tokens": batch_tokens}
    file = LineFile(output, about, every=1)
    done = _begin(file, resume)
    if done is None:
        return
    embedder = None if candidates is None else _open(candidates, threads)
    ranker = Ranker.over([text for _, text in found], _open(model, threads), embedder, batch_tokens)
    unit, of_documents = _unit(queries), _unit(documents)

    def as_lines(rows: Iterator[tuple[int, str]]) -> Iterator[dict[str, Any]]:
        for number, query in rows:
            ranked = ranker.ranking(query)[:top]
            entries = [{of_documents: found[index][0], "score": round(score, _NUMBERS)} for index, score in ranked]
            yield {unit: number, "documents": entries}

    file.write(_rows(queries, column), done, as_lines)


def _rows(path: Path, column: str | None) -> Iterator[tuple[int, str]]:
    """Read the texts of a file, each with its number."""
    from hashee.data.texts import read_numbered

    for number, text in read_numbered(path, column):
        if not isinstance(text, str):
            raise InputError(f"{path} holds pairs of texts; name the column of the texts with --column")
        yield number, text.strip()


def _open(model: str, threads: int | None, pooling: str | None = None) -> Any:
    import torch
    from transformers.utils import logging

    from hashee.hf.text_models import open_text_model

    logging.disable_progress_bar()
    if threads is not None:
        torch.set_num_threads(threads)
    return open_text_model(model, pooling)


def _begin(file: Any, resume: bool) -> int | None:
    done: int | None = file.begin(resume)
    if done is None:
        print(f"note: {file.path} is complete; without --resume it is written anew", file=sys.stderr)
    elif done:
        print(f"note: going on behind {done:,} texts", file=sys.stderr)
    return done


def _identity(model: str) -> str:
    return str(Path(model).resolve()) if Path(model).exists() else model


def _unit(path: Path) -> str:
    return "row" if path.suffix.lower() == ".parquet" else "line"


def _check_ending(output: Path, endings: tuple[str, ...]) -> None:
    if not output.name.endswith(endings):
        raise InputError(f"cannot write {output}: the name must end in {', '.join(endings)}")
