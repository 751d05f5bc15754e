"""The process of one model: opens its folder once, then runs the batches that the server sends.

It is started afresh (spawn), and torch is imported here only after the number of threads is set.
"""

import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hashee.cost.threads import THREAD_VARIABLES, wait_passively
from hashee.errors import FATAL, HasheeError, first_line
from hashee.serving.settings import ModelSettings

Column = Sequence[NDArray[np.int64]]


@dataclass(frozen=True)
class Opened:
    """The first message of a worker: what is known once the model is open."""

    model_class: str
    max_length: int
    token_types: bool
    reads_first_row: bool
    parameters: int | None
    process: int


@dataclass(frozen=True)
class NotOpened:
    """The first and last message of a worker that cannot open its folder."""

    reason: str


@dataclass(frozen=True)
class Job:
    """A batch to run: ids, and token types where the model has them, of all texts one after the other.

    One array of each is several times faster to send to another process than one for every text.
    """

    number: int
    lengths: list[int]
    """Tokens of each text."""
    flat: Mapping[str, NDArray[np.int32]]
    """(tokens of all texts,) by name."""

    @classmethod
    def of(cls, number: int, columns: Mapping[str, Column]) -> "Job":
        """Make a batch of the columns of its texts."""
        flat = {name: np.concatenate(rows).astype(np.int32) for name, rows in columns.items()}
        return cls(number, [len(row) for row in columns["input_ids"]], flat)

    @property
    def columns(self) -> Mapping[str, Column]:
        """Ids, and token types where the model has them, of each text."""
        ends = np.cumsum(self.lengths)[:-1]
        return {name: np.split(values.astype(np.int64), ends) for name, values in self.flat.items()}


@dataclass(frozen=True)
class Done:
    """A batch that was run: for each text its output, or in one line why there is none."""

    number: int
    outputs: list[NDArray[np.float32] | str]
    """Logits (labels,), or an embedding (width,)."""
    seconds: float


@dataclass(frozen=True)
class OpenModel:
    """A model that is ready to run: its scorer, its padding, and how states become an embedding."""

    scorer: Any
    pad_id: int | None
    opened: Opened
    pooling: str

    def run(self, job: Job) -> Done:
        """Run a batch; if that fails, each of its texts on its own, so that one that fails fails alone."""
        start = time.perf_counter()
        columns, texts = job.columns, range(len(job.lengths))
        try:
            outputs: list[NDArray[np.float32] | str] = [*self._outputs(columns, texts)]
        except BaseException as error:
            if isinstance(error, FATAL):
                raise
            outputs = [self._alone(columns, text) for text in texts]
        return Done(job.number, outputs, time.perf_counter() - start)

    def _alone(self, columns: Mapping[str, Column], text: int) -> NDArray[np.float32] | str:
        try:
            return self._outputs(columns, [text])[0]
        except BaseException as error:
            if isinstance(error, FATAL):
                raise
            return first_line(error)

    def _outputs(self, columns: Mapping[str, Column], texts: Sequence[int]) -> list[NDArray[np.float32]]:
        from hashee.hf.predict import run_batch  # noqa: PLC0415  # imports torch

        outputs = run_batch(self.scorer, columns, texts, self.pad_id)
        return [np.asarray(output if output.ndim == 1 else self._pooled(output), np.float32) for output in outputs]

    def _pooled(self, states: NDArray[Any]) -> NDArray[Any]:
        """Return the embedding of a text. states: (tokens, width)."""
        return np.asarray(states[0] if self.pooling == "cls" else states.mean(axis=0))


def open_model(settings: ModelSettings, pooling: str = "mean") -> OpenModel:
    """Open a folder with its backend."""
    from hashee.export.loading import load  # noqa: PLC0415  # imports torch
    from hashee.hf.pretrained import quiet_transformers  # noqa: PLC0415
    from hashee.hf.text_models import sentence_class  # noqa: PLC0415

    with quiet_transformers():
        if settings.dense:
            return _open_dense(settings, pooling)
        if settings.backend in ("torch", "int8") and settings.pooling is None and sentence_class(str(settings.folder)):
            return _open_sentence_model(settings, pooling)
        backend = "torch" if settings.backend == "int8" else settings.backend
        model = load(
            settings.folder,
            backend,
            threads=None if backend == "torch" else settings.threads,
            quantize="int8" if settings.backend == "int8" else None,
        )
    return _ready(model, model.scorer(), model.tokenizer.pad_token_id, pooling)


def _open_sentence_model(settings: ModelSettings, pooling: str) -> OpenModel:
    """Open an embedder or reranker of sentence-transformers, with what comes behind its encoder."""
    from hashee.hf.text_models import open_text_model  # noqa: PLC0415  # imports torch

    model = open_text_model(settings.folder)
    if settings.backend == "int8":
        model = model.quantized()
    return _ready(model.transformer, model.scorer(), model.tokenizer.pad_token_id, pooling)


def _open_dense(settings: ModelSettings, pooling: str) -> OpenModel:
    """Open a model without exits, which transformers runs."""
    from functools import partial  # noqa: PLC0415

    from hashee.families.adapters import adapter_for  # noqa: PLC0415
    from hashee.hf.opening import open_config, open_dense, open_tokenizer  # noqa: PLC0415
    from hashee.hf.predict import Scorer, run_in_torch  # noqa: PLC0415

    config = open_config(str(settings.folder))
    adapter = adapter_for(config)
    is_classifier = (config.architectures or [""])[0].endswith("ForSequenceClassification")
    model = open_dense(str(settings.folder), "ForSequenceClassification" if is_classifier else "").eval()
    scorer = Scorer(partial(run_in_torch, model), adapter.max_length(config), adapter.token_types, None)
    return _ready(model, scorer, open_tokenizer(settings.folder).pad_token_id, pooling)


def _ready(model: Any, scorer: Any, pad_id: int | None, pooling: str) -> OpenModel:
    from hashee.families.adapters import head_reads_first_row  # noqa: PLC0415  # imports torch

    exported = getattr(model, "description", None)
    if exported is not None:
        name, reads_first_row, parameters = "", bool(exported["reads_first_row"]), None
    else:
        name, reads_first_row = type(model).__name__, head_reads_first_row(model)
        parameters = sum(each.numel() for each in model.parameters())
    opened = Opened(name, scorer.max_length, scorer.token_types, reads_first_row, parameters, os.getpid())
    return OpenModel(scorer, pad_id, opened, pooling)


def work(connection: Connection, settings: ModelSettings, pooling: str) -> None:
    """Open a model, say so, and run batches until the server sends None or is gone."""
    # Ctrl-C and SIGTERM reach whole groups of processes, but what was accepted is still to be answered.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(settings.threads)))
    wait_passively()
    try:
        model = _opened_with_threads(settings, pooling)
    except BaseException as error:
        if isinstance(error, FATAL):
            raise
        connection.send(NotOpened(str(error) if isinstance(error, HasheeError) else first_line(error)))
        return
    connection.send(model.opened)
    while True:
        try:
            job = connection.recv()
            if job is None:
                return
            connection.send(model.run(job))
        except (EOFError, OSError):
            return


def _opened_with_threads(settings: ModelSettings, pooling: str) -> OpenModel:
    import torch  # noqa: PLC0415  # reads the number of threads from the environment

    torch.set_num_threads(settings.threads)
    return open_model(settings, pooling)
