"""`hashee generate` and `hashee summarize`: documents in, lines of JSON out; a run that was killed goes on."""

import json
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from hashee.cli.predict import Input, Output, check_output
from hashee.cli.shared import Column
from hashee.errors import InputError

_Model = Annotated[Path, typer.Argument(help="Folder of a seq2seq model, with exits or dense.")]
_MaxNewTokens = Annotated[int | None, typer.Option(help="Tokens of a text at most; default: the model's.", min=1)]
_NumBeams = Annotated[int | None, typer.Option(help="Beams, 1 is greedy; default: the model's.", min=1)]
_NoRepeat = Annotated[int | None, typer.Option("--no-repeat-ngram", help="Write no so many tokens twice.", min=0)]
_WithInput = Annotated[bool, typer.Option("--with-input", help="Write the documents too, to train on.")]
_Tokens = Annotated[int, typer.Option(help="Tokens that are read at once.", min=1)]
_Threads = Annotated[int | None, typer.Option(help="Threads to run on; default: torch's.", min=1)]
_Resume = Annotated[bool, typer.Option("--resume", help="Go on with what was interrupted.")]
GENERATED, SUMMARY = "generated", "summary"
"""What the lines of each command call a text that was written."""
SUMMARY_DEFAULTS = {"max_new_tokens": 128, "num_beams": 4, "no_repeat_ngram_size": 3}
"""BART's for summaries, where neither the command nor the model says otherwise."""


def generate(
    model: _Model,
    texts: Input,
    output: Output = None,
    column: Column = None,
    max_new_tokens: _MaxNewTokens = None,
    num_beams: _NumBeams = None,
    no_repeat: _NoRepeat = None,
    with_input: _WithInput = False,
    batch_tokens: _Tokens = 2048,
    threads: _Threads = None,
    resume: _Resume = False,
) -> None:
    """Write a text for every text of a file with a seq2seq model, such as a translation, as lines of JSON."""
    options = {"max_new_tokens": max_new_tokens, "num_beams": num_beams, "no_repeat_ngram_size": no_repeat}
    _run(_Job(GENERATED, model, texts, output, column, options, with_input, batch_tokens, threads), resume)


def summarize(
    model: _Model,
    texts: Input,
    output: Output = None,
    column: Column = None,
    max_new_tokens: _MaxNewTokens = None,
    num_beams: _NumBeams = None,
    no_repeat: _NoRepeat = None,
    with_input: _WithInput = False,
    batch_tokens: _Tokens = 2048,
    threads: _Threads = None,
    resume: _Resume = False,
) -> None:
    """Summarize every document of a file with a seq2seq model, as lines of JSON."""
    options = {"max_new_tokens": max_new_tokens, "num_beams": num_beams, "no_repeat_ngram_size": no_repeat}
    _run(_Job(SUMMARY, model, texts, output, column, options, with_input, batch_tokens, threads), resume)


@dataclass(frozen=True)
class _Job:
    """What is written, with which model and how."""

    name: str
    """What the lines call a text that was written."""
    model: Path
    texts: Path
    output: Path | None
    column: str | None
    options: dict[str, int | None]
    with_input: bool
    batch_tokens: int
    threads: int | None

    def rows(self) -> Iterator[tuple[int, str]]:
        """Read the documents, each with its number."""
        from hashee.data.texts import read_numbered

        for number, document in read_numbered(self.texts, self.column):
            if not isinstance(document, str):
                raise InputError(f"{self.texts} holds pairs of texts; name the column of the documents with --column")
            yield number, document


def _run(job: _Job, resume: bool) -> None:
    """Write a line for each document."""
    if job.output is not None:
        check_output(job.output, job.texts)
    elif resume:
        raise InputError("--resume goes on with a file; name OUT, which was written before")
    next(job.rows(), None)  # a missing column is told before the model is opened
    writer = _Writer.open(job)
    if job.output is None:
        for values in writer.lines(job.rows()):
            print(json.dumps(values, ensure_ascii=False))
    else:
        from hashee.hf.written_files import LineFile, file_digest

        about = {"model": str(job.model.resolve()), "input": file_digest(job.texts), "column": job.column}
        file = LineFile(job.output, about | writer.about)
        done = file.begin(resume)
        if done is None:
            print(f"note: {job.output} is complete; without --resume it is written anew", file=sys.stderr)
            return
        if done:
            print(f"note: going on behind {done:,} texts", file=sys.stderr)
        file.write(job.rows(), done, writer.lines)
    writer.print_notes()


class _Writer:
    """An opened model, how it writes, and what was noticed on the way."""

    def __init__(self, job: _Job, model: Any, tokenizer: Any, writing: Any) -> None:
        self.job, self.model, self.tokenizer, self.writing = job, model, tokenizer, writing
        self.truncated = self.empty = 0

    @classmethod
    def open(cls, job: _Job) -> "_Writer":
        """Open a model that writes text, dense or converted."""
        import torch
        from transformers.utils import logging

        from hashee.data.writing import Writing
        from hashee.hf.opening import open_tokenizer, open_writer

        logging.disable_progress_bar()
        if job.threads is not None:
            torch.set_num_threads(job.threads)
        model = open_writer(str(job.model))
        options = job.options
        if job.name == SUMMARY:
            own = model.generation_config
            found = {name: getattr(own, name, None) or default for name, default in SUMMARY_DEFAULTS.items()}
            options = {name: found[name] if value is None else value for name, value in options.items()}
        return cls(job, model, open_tokenizer(job.model), Writing(**options))

    @property
    def about(self) -> dict[str, Any]:
        """What the lines depend on beyond model and documents."""
        job = self.job
        own: dict[str, Any] = {"name": job.name, "with_input": job.with_input, "batch_tokens": job.batch_tokens}
        return {**own, **vars(self.writing)}

    def lines(self, rows: Iterator[tuple[int, str]]) -> Iterator[dict[str, Any]]:
        """Yield the values of the line of each document."""
        from hashee.data.batching import Batching
        from hashee.hf.writing import WINDOW, write

        unit = "row" if self.job.texts.suffix.lower() == ".parquet" else "line"
        read: deque[tuple[int, str]] = deque()

        def documents() -> Iterator[str]:
            for row in rows:
                read.append(row)
                yield row[1]

        batching = Batching(tokens=self.job.batch_tokens, window=WINDOW)
        for written in write(self.model, self.tokenizer, documents(), self.writing, batching):
            number, document = read.popleft()
            self.truncated += written.truncated
            self.empty += not document.strip()
            source = {"document": document} if self.job.with_input else {}
            flag = {"truncated": True} if written.truncated else {}
            yield {unit: number} | source | {self.job.name: written.text} | flag

    def print_notes(self) -> None:
        """Say once how many documents were not read to their end, and how many were empty."""
        from hashee.hf.writing import longest_document

        if self.truncated:
            most = longest_document(self.model, self.tokenizer)
            print(f"warning: {self.truncated:,} documents were cut at {most:,} tokens", file=sys.stderr)
        if self.empty:
            print(f"warning: {self.empty:,} documents are empty, and so is what was written for them", file=sys.stderr)
