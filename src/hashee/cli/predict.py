"""`hashee predict`: texts in, lines of JSON or parts of a folder out."""

import gzip
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TextIO, cast

import typer

from hashee.cli.shared import Column, EngineName, PairColumn
from hashee.cost.threads import usable_cores
from hashee.errors import HasheeError, InputError
from hashee.training.stopping import STOPS

_ONE_FILE = (".jsonl", ".jsonl.gz")
"""Endings of an output that is one file; others are folders of parts."""


class Backend(StrEnum):
    """What runs a model."""

    torch = "torch"
    onnx = "onnx"
    openvino = "openvino"


class Quantize(StrEnum):
    """Weights with fewer bits."""

    int8 = "int8"


class PartFormat(StrEnum):
    """Formats of parts."""

    jsonl = "jsonl"
    parquet = "parquet"


Input = Annotated[
    Path, typer.Argument(metavar="IN", help="File of texts: .txt, .jsonl, .csv, .tsv (also .gz) or .parquet.")
]
_Rows = Annotated[
    Path,
    typer.Argument(metavar="IN", help="File of texts: .txt, .jsonl, .csv, .tsv (also .gz), .parquet; or a folder."),
]
Output = Annotated[
    Path | None, typer.Argument(metavar="[OUT]", help="File to write, .jsonl or .jsonl.gz; default: standard output.")
]
_Scores = Annotated[
    Path | None,
    typer.Argument(
        metavar="[OUT]", help="One file, .jsonl or .jsonl.gz, or a folder of parts; default: standard output."
    ),
]
_Backend = Annotated[Backend, typer.Option(help="torch for converted folders, onnx or openvino for exported ones.")]


def predict(
    model: Annotated[
        Path, typer.Argument(help="Folder of a model: converted, exported, sentence-transformers' or dense; or minilm.")
    ],
    texts: _Rows,
    output: _Scores = None,
    engine: Annotated[EngineName, typer.Option(help="Score here or on a Ray cluster.")] = EngineName.local,
    address: Annotated[
        str | None, typer.Option(help="Ray cluster that is running, HOST:PORT or auto; default: one on this machine.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a folder of parts.")] = False,
    part_format: Annotated[PartFormat, typer.Option("--format", help="Of parts.")] = PartFormat.jsonl,
    part_rows: Annotated[int, typer.Option(help="Rows of a part.", min=1)] = 4096,
    actors: Annotated[
        int | None, typer.Option(help="Processes of --engine ray; default: as the cores allow.", min=1)
    ] = None,
    backend: _Backend = Backend.torch,
    quantize: Annotated[Quantize | None, typer.Option(help="int8 weights, on torch.")] = None,
    pooling: Annotated[str | None, typer.Option(help="Of plain encoders: mean or cls instead of states.")] = None,
    prompt: Annotated[str | None, typer.Option(help="Name of an embedder's prompt; default: its own.")] = None,
    column: Column = None,
    pair_column: PairColumn = None,
    batch_tokens: Annotated[int, typer.Option(help="Tokens that run at once.", min=1)] = 2048,
    threads: Annotated[
        int | None, typer.Option(help="Threads of each process; default: all cores, on Ray 1.", min=1)
    ] = None,
) -> None:
    """Score every text of a file or folder: labels, scores, tags, embeddings; in parts, it goes on after a kill."""
    from transformers.utils import logging

    from hashee.bulk.settings import BulkJob, Format, ModelOptions, RowOptions

    logging.disable_progress_bar()  # of weights that are read; ours counts texts
    folder = str(model) if str(model) == "minilm" else str(model.absolute())
    options = ModelOptions(folder, str(backend), None if quantize is None else str(quantize), pooling, prompt)
    if output is None or output.name.endswith(_ONE_FILE):
        _refuse_options_of_parts(output, resume, engine, part_format)
        _write_one_file(options, texts, output, RowOptions(column, pair_column, batch_tokens), threads)
        return
    rows = RowOptions(column, pair_column, batch_tokens, part_rows, Format(part_format))
    each = threads or (1 if engine is EngineName.ray else usable_cores())
    job = BulkJob(options, texts.absolute(), output.absolute(), rows, each)
    summary = _run(job, _engine(engine, address, actors), resume, threads is not None)
    rejected = f"; {summary.rejected:,} rejected, see {output / 'rejects.jsonl'}" if summary.rejected else ""
    print(f"{summary.rows:,} rows in {summary.parts:,} parts{rejected}", file=sys.stderr)


def _engine(name: EngineName, address: str | None, actors: int | None) -> Any:
    if name is EngineName.local:
        if address is not None or actors is not None:
            raise InputError("--address and --actors are for --engine ray; leave them out, or say --engine ray")
        from hashee.bulk.local_engine import score_here

        return score_here
    from hashee.bulk.ray_engine import RayEngine

    return RayEngine(address, actors)


def _run(job: Any, engine: Any, resume: bool, threads_given: bool) -> Any:
    from hashee.bulk.run import run_job
    from hashee.files import full_disk_told

    try:
        with full_disk_told(job.output, "make room and go on with --resume"):
            return run_job(job, engine, resume=resume, threads_given=threads_given)
    except STOPS:
        print(f"note: go on with --resume; {job.output} holds what was scored", file=sys.stderr)
        raise


def _refuse_options_of_parts(output: Path | None, resume: bool, engine: EngineName, part_format: PartFormat) -> None:
    where = "standard output" if output is None else str(output)
    named = [("--resume", resume), ("--engine ray", engine is EngineName.ray)]
    named.append(("--format parquet", part_format is PartFormat.parquet))
    for name, given in named:
        if given:
            raise InputError(f"{name} is for a folder of parts, not for {where}; name a folder to write to")


def _write_one_file(options: Any, texts: Path, output: Path | None, rows: Any, threads: int | None) -> None:
    """Write one file, or to standard output; a row that cannot be read is an error."""
    from hashee.bulk.parts import json_line
    from hashee.bulk.scoring import open_scoring_model
    from hashee.data.row_files import location_of
    from hashee.data.texts import read_numbered

    if output is not None:
        check_output(output, texts)
    read = read_numbered(texts, rows.column, rows.pair_column)
    unit = "row" if texts.suffix.lower() == ".parquet" else "line"
    model = open_scoring_model(options, threads)
    with _written(output) as file:
        for number, text, logits in _outputs(model, read, rows.batch_tokens):
            try:
                fields = model.decode(text, logits)
            except HasheeError as error:
                raise HasheeError(f"{location_of(texts, number)}: {error}") from None
            file.write(json_line({unit: number, **fields}))


def _outputs(model: Any, rows: Iterator[tuple[int, Any]], batch_tokens: int) -> Iterator[tuple[int, Any, Any]]:
    """Yield each row's number and text with the model's output for it."""
    from hashee.data.batching import Batching
    from hashee.hf.predict import predict as predict_all

    read: deque[tuple[int, Any]] = deque()

    def read_ahead() -> Iterator[Any]:
        for row in rows:
            read.append(row)
            yield from model.prompted([row[1]])

    for output in predict_all(model.scorer, read_ahead(), model.tokenizer, Batching(tokens=batch_tokens), True):
        yield *read.popleft(), output


def check_output(output: Path, texts: Path) -> None:
    """Refuse to write to a folder, or over the file that is read."""
    if output.is_dir():
        raise InputError(f"{output} is a folder; name a file to write")
    if output.exists() and texts.exists() and output.samefile(texts):
        raise InputError(f"{output} is the file that is read; name another to write")


@contextmanager
def _written(output: Path | None) -> Iterator[TextIO]:
    """Yield where lines go: standard output, or a file that is put in its place when all of them are there."""
    if output is None:
        yield sys.stdout
        return
    from hashee.files import replaced_atomically

    with replaced_atomically(output) as draft:
        opener = gzip.open if output.suffix == ".gz" else open
        with opener(draft, "wt", encoding="utf-8") as file:
            yield cast(TextIO, file)
