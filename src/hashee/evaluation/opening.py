"""Opening what is evaluated: converted, dense or exported, from a folder or as it is."""

import copy
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from hashee.cost.threads import usable_cores
from hashee.data.batching import Batching
from hashee.data.task import Task
from hashee.data.task_types import type_of
from hashee.data.texts import Text
from hashee.data.tokenized import ExampleTokenizer
from hashee.engine.adapter import Adapter
from hashee.errors import CheckpointError, InputError, UnsupportedOption
from hashee.evaluation.labels import check_head, check_problem, head_for, output_order
from hashee.evaluation.settings import EvaluateSettings
from hashee.export import export_onnx
from hashee.export.folder import DESCRIPTION, GRAPH
from hashee.export.loading import load
from hashee.export.runtime import ExportedModel
from hashee.families.adapters import adapter_for
from hashee.hf.model import HashedModel
from hashee.hf.opening import open_config, open_dense, open_tokenizer
from hashee.hf.predict import Scorer, main_output, predict, run_in_torch
from hashee.packages import require
from hashee.tables.table import ExitTable

Array = NDArray[Any]
RunBatch = Callable[[dict[str, Array]], Array]
"""From arrays (batch, length) by name to outputs (batch, ...)."""


@dataclass(frozen=True)
class Opened:
    """A model with a head for a task, on whatever runtime, and what must be known of it."""

    source: str
    """Its folder; its class if it was given as an object that has none."""
    model: Any
    config: Any
    tokenizer: Any
    task: Task
    order: list[int]
    """The output that stands for each label of the task: (labels,)."""
    run: RunBatch
    table: ExitTable | None
    """None for a dense model, which transformers runs."""
    reads_first_row: bool = False
    backend: str = "torch"

    @property
    def adapter(self) -> Adapter:
        """What hashee knows of the model's family."""
        return adapter_for(self.config)

    @property
    def layers(self) -> int:
        """Layers that the model has."""
        return self.adapter.shape(self.config).layers

    @property
    def encoder(self) -> ExampleTokenizer:
        """How examples are tokenized for this model."""
        longest = min(self.adapter.max_length(self.config), self.tokenizer.model_max_length)
        return ExampleTokenizer(self.task, self.tokenizer, longest, self.adapter.token_types)

    def predict(self, texts: Sequence[Text], progress: bool) -> Iterator[Array]:
        """Yield the logits for each text, with the outputs in the model's own order: (outputs,)."""
        if self.table is not None:
            logits: Iterator[Array] = self.model.predict(texts, tokenizer=self.tokenizer, progress=progress)
            return logits
        scorer = Scorer(self.run, self.encoder.max_length, self.adapter.token_types, exit_layers=None)
        return predict(scorer, texts, self.tokenizer, Batching(), progress)

    def cut_at(self, max_length: int | None) -> "Opened":
        """Return the same model for texts that are cut at so many tokens."""
        if max_length is None:
            return self
        tokenizer = copy.deepcopy(self.tokenizer)
        tokenizer.model_max_length = min(max_length, tokenizer.model_max_length)
        return replace(self, tokenizer=tokenizer)


def open_model(source: Any, task: Task, settings: EvaluateSettings, tokenizer: Any = None) -> Opened:
    """Open a folder or take a model, and check that it has a head for the task.

    source: a folder that `hashee fit`, `save_pretrained` or `export_onnx` wrote, a Hub id of a dense model, or any of
    the models that these give.
    """
    if isinstance(source, ExportedModel):
        return _exported(source, task, settings, tokenizer)
    if isinstance(source, PreTrainedModel):
        if settings.backend != "torch" or settings.quantize is not None:
            raise UnsupportedOption("backend and quantize are for folders; give the model that is to be evaluated")
        check_head(type(source).__name__, source.config, task, type(source).__name__)
        return _in_torch(source, task, settings, tokenizer)
    source = str(source)
    if settings.backend != "torch":
        return _on_backend(Path(source), task, settings, tokenizer)
    config = open_config(source, "model")
    check_head((config.architectures or ["model without a head"])[0], config, task, source)
    if getattr(config, "hashee", None) is None:
        if settings.quantize is not None:
            raise UnsupportedOption(f"quantize is for models with exits; the model in {source} is dense")
        model = open_dense(source, head_for(task))
    else:
        model = load(source, quantize=settings.quantize)
    return _in_torch(model, task, settings, tokenizer)


def open_reference(source: str, task: Task, settings: EvaluateSettings, device: Any) -> Opened:
    """Open the dense model that a model is compared with."""
    opened = open_model(source, task, replace(settings, backend="torch", quantize=None))
    opened.model.to(device)
    return opened


def _in_torch(model: Any, task: Task, settings: EvaluateSettings, tokenizer: Any) -> Opened:
    source = model.config.name_or_path or type(model).__name__
    model.eval()
    hashed = isinstance(model, HashedModel)
    if tokenizer is None:
        tokenizer = _tokenizer(model)
    return Opened(
        source=source,
        model=model,
        config=model.config,
        tokenizer=tokenizer,
        task=task,
        order=output_order(model.config, task, settings.label_names, source),
        run=partial(run_in_torch, model),
        table=model.exit_table if hashed else None,
        reads_first_row=hashed and bool(model.hashed_encoder.reads_first_row),
    )


def _on_backend(folder: Path, task: Task, settings: EvaluateSettings, tokenizer: Any) -> Opened:
    """Open an exported folder, or export a converted model for this evaluation alone."""
    if settings.quantize is not None:
        raise UnsupportedOption(f"quantize={settings.quantize!r} is for backend torch, not {settings.backend}")
    threads = settings.threads or usable_cores()
    if (folder / DESCRIPTION).exists():
        return _exported(load(folder, settings.backend, threads=threads), task, settings, tokenizer)
    model = load(folder)
    check_head(type(model).__name__, model.config, task, str(folder))
    tokenizer = tokenizer or model.tokenizer
    with tempfile.TemporaryDirectory(prefix="hashee-evaluate-") as temporary:
        exported = load(export_onnx(model, temporary, tokenizer=tokenizer), settings.backend, threads=threads)
        opened = _exported(exported, task, settings, tokenizer)
    return replace(opened, source=str(folder))


def _exported(model: ExportedModel, task: Task, settings: EvaluateSettings, tokenizer: Any) -> Opened:
    folder = str(model.folder)
    config = open_config(folder, "model")
    axes = len(model.description["outputs"].get("logits", ()))
    if axes != (3 if type_of(task).tags_words else 2):
        raise InputError(
            f"the graph in {folder} has the outputs {', '.join(model.outputs)}; {task.name} needs the logits of a "
            f"head of the kind {head_for(task)}"
        )
    check_problem(config, task, folder)
    return Opened(
        source=folder,
        model=model,
        config=config,
        tokenizer=tokenizer or model.tokenizer,
        task=task,
        order=output_order(config, task, settings.label_names, folder),
        run=lambda arrays: np.asarray(main_output(model(**arrays))),
        table=_table_in_graph(model, config),
        reads_first_row=bool(model.description["reads_first_row"]),
        backend=model.backend,
    )


def _table_in_graph(model: ExportedModel, config: Any) -> ExitTable:
    """Return the exit table that is a constant of an exported graph."""
    onnx = require("onnx", "onnx", "reading the exits of an exported model")
    graph = onnx.load(model.folder / GRAPH).graph
    for constant in graph.initializer:
        if constant.name.startswith("exit_table"):
            layers = torch.from_numpy(onnx.numpy_helper.to_array(constant).astype(np.int64))
            return ExitTable.from_parts(layers, config.hashee["table"])
    raise CheckpointError(f"the graph in {model.folder} holds no exit table; export the model again")


def _tokenizer(model: Any) -> Any:
    source = model.config.name_or_path
    hashed = isinstance(model, HashedModel)
    if not hashed and not source:
        raise InputError("a dense model that was not loaded from a folder knows no tokenizer; pass tokenizer=...")
    return model.tokenizer if hashed else open_tokenizer(source)
