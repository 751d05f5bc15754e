"""Opening what a fit starts from: a dense model of a known family with a head for the task, and its tokenizer."""

import copy
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import set_seed

from hashee.data import Task
from hashee.data.task_types import TASK_TYPES
from hashee.data.tokenized import ExampleTokenizer
from hashee.embedded import minilm_folder
from hashee.engine.adapter import Adapter
from hashee.errors import InputError, UnsupportedModel
from hashee.families.adapters import adapter_for
from hashee.hf.convert import convert
from hashee.hf.opening import open_config, open_dense, open_tokenizer
from hashee.tables.table import ExitTable
from hashee.training.settings import EMBEDDED


@dataclass(frozen=True)
class Backbone:
    """A dense model on disk or on the Hub, of which the first `depth` layers are used for a task."""

    source: str
    task: Task
    tokenizer: Any
    config: Any
    """The whole model's, at its full depth."""
    depth: int

    @property
    def adapter(self) -> Adapter:
        """What hashee knows of the model's family."""
        return adapter_for(self.config)

    @property
    def layers(self) -> int:
        """Layers of the whole model."""
        return self.adapter.shape(self.config).layers

    def encoder(self, max_length: int | None) -> ExampleTokenizer:
        """Return how texts are tokenized for this model."""
        longest = min(self.adapter.max_length(self.config), self.tokenizer.model_max_length)
        return ExampleTokenizer(
            self.task, self.tokenizer, min(longest, max_length or longest), self.adapter.token_types
        )

    def load(self, seed: int = 0, depth: int | None = None) -> Any:
        """Return the dense model at a depth (`self.depth`) with a head for the task; the seed draws a new head."""
        task_type = TASK_TYPES[self.task.kind]
        config = copy.deepcopy(self.config)
        config.num_hidden_layers = depth or self.depth
        labels = self.task.labels or ("score",)
        config.id2label = dict(enumerate(labels))
        config.label2id = {label: number for number, label in enumerate(labels)}
        if task_type.problem_type is not None:
            config.problem_type = task_type.problem_type
        set_seed(seed)
        return open_dense(self.source, task_type.head, config=config, new_head=True)

    def has_head(self) -> bool:
        """Say whether the model on disk has a head for the very labels of the task."""
        labels = self.task.labels or ("score",)
        return (self.config.architectures or [""])[0].endswith("Classification") and (
            list(self.config.id2label.values()) == list(labels)
        )

    def packed(self, dense: Any) -> Any:
        """Return a dense model on the packed engine: the same maths without padding, the same parameters."""
        vocabulary = dense.get_input_embeddings().num_embeddings
        return convert(dense, ExitTable.never(vocabulary, self.adapter.shape(dense.config).layers))


def open_backbone(source: str, task: Task, depth: int | None) -> Backbone:
    """Find a backbone and check that it can be fitted to the task at this depth; its weights are not read yet."""
    if source == EMBEDDED and not Path(source).exists():
        source = str(minilm_folder())
    config = open_config(source, "backbone")
    if getattr(config, "hashee", None) is not None:
        raise UnsupportedModel(f"the model in {source} has exits already; name the backbone that it was made from")
    full = adapter_for(config).shape(config).layers
    if depth is not None and depth > full:
        raise InputError(f"depth is {depth} but the backbone {source} has {full} layers; give at most {full}")
    if depth not in (None, full) and getattr(config, "num_hidden_groups", 1) > 1:
        raise UnsupportedModel(
            f"{source} deals its layers out to {config.num_hidden_groups} groups, so its first {depth} layers are no "
            f"model of their own; leave out depth"
        )
    return Backbone(source, task, open_tokenizer(source), config, depth or full)


def weights_fingerprint(model: Any) -> str:
    """Return the SHA-256 of all parameters with their names."""
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        digest.update(f"{name} {tuple(parameter.shape)} ".encode())
        digest.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
