"""`hashee predict`: texts in, lines of JSON out."""

import gzip
import json
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TextIO, cast

import typer

from hashee.cli.shared import Column, PairColumn
from hashee.errors import HasheeError, InputError


class Backend(StrEnum):
    """What runs a model."""

    torch = "torch"
    onnx = "onnx"
    openvino = "openvino"


class Quantize(StrEnum):
    """Weights with fewer bits."""

    int8 = "int8"


Input = Annotated[
    Path, typer.Argument(metavar="IN", help="File of texts: .txt, .jsonl, .csv, .tsv (also .gz) or .parquet.")
]
Output = Annotated[
    Path | None, typer.Argument(metavar="[OUT]", help="File to write, .jsonl or .jsonl.gz; default: standard output.")
]
_Backend = Annotated[Backend, typer.Option(help="torch for converted folders, onnx or openvino for exported ones.")]


def predict(
    model: Annotated[Path, typer.Argument(help="Folder of a converted or exported model.")],
    texts: Input,
    output: Output = None,
    backend: _Backend = Backend.torch,
    quantize: Annotated[Quantize | None, typer.Option(help="int8 weights, on torch.")] = None,
    column: Column = None,
    pair_column: PairColumn = None,
    batch_tokens: Annotated[int, typer.Option(help="Tokens that run at once.", min=1)] = 2048,
    threads: Annotated[int | None, typer.Option(help="Threads to run on; default: the runtime's.", min=1)] = None,
) -> None:
    """Predict every text of a file with a converted model, as lines of JSON."""
    from hashee.data.texts import location_of, read_numbered

    if output is not None:
        check_output(output, texts)
    rows = read_numbered(texts, column, pair_column)
    unit = "row" if texts.suffix.lower() == ".parquet" else "line"
    opened, decode = _open(model, backend, quantize, threads)
    with _written(output) as file:
        for number, text, logits in _outputs(opened, rows, batch_tokens):
            try:
                fields = decode(text, logits)
            except HasheeError as error:
                raise HasheeError(f"{location_of(texts, number)}: {error}") from None
            file.write(json.dumps({unit: number, **fields}, allow_nan=False) + "\n")


def _open(folder: Path, backend: Backend, quantize: Quantize | None, threads: int | None) -> tuple[Any, Any]:
    """Return a model and how its outputs are read."""
    from transformers.utils import logging

    from hashee.export.loading import load
    from hashee.hf.decoding import decoder_for

    logging.disable_progress_bar()  # of weights that are read; ours counts texts
    model = load(folder, backend, threads=_threads(backend, threads), quantize=quantize)
    return model, decoder_for(*_head(model, folder), model.tokenizer)


def _outputs(model: Any, rows: Iterator[tuple[int, Any]], batch_tokens: int) -> Iterator[tuple[int, Any, Any]]:
    """Yield each row's number and text with the model's output for it."""
    from hashee.data.batching import Batching

    read: deque[tuple[int, Any]] = deque()

    def read_ahead() -> Iterator[Any]:
        for row in rows:
            read.append(row)
            yield row[1]

    for output in model.predict(read_ahead(), batching=Batching(tokens=batch_tokens)):
        yield *read.popleft(), output


def _head(model: Any, folder: Path) -> tuple[str, Any]:
    """Return the name of a model's class and its config."""
    from hashee.hf.opening import open_config

    config = getattr(model, "config", None)
    if config is not None:
        return type(model).__name__, config
    config = open_config(str(folder))
    return (config.architectures or ["a model of no known class"])[0], config


def _threads(backend: Backend, threads: int | None) -> int | None:
    """Give torch its threads; the other backends are told when they start."""
    if backend is not Backend.torch or threads is None:
        return threads
    import torch

    torch.set_num_threads(threads)
    return None


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
