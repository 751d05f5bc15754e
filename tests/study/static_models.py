"""Tiny backbones, batches and runs that the tests of static methods share."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fitting_data import RECIPE, make_data
from transformers import AutoModelForSequenceClassification

from architectures import make_config, make_ids, make_mask, padded, randomise
from hashee.data.task import Kind, Task
from hashee.study.results import RunResult
from hashee.study.run import Experiment, run_experiment
from hashee.training.backbone import Backbone, open_backbone
from hashee.training.outputs import Batch
from small_tokenizer import make_tokenizer

TASK = Task("tiny", Kind.CLASSES, ("bad", "good"), "accuracy")


def make_teacher(folder: Path, family: str = "bert", layers: int = 4, **changes: Any) -> Backbone:
    """Write a tiny classifier without dropout, every parameter random, and open it as a fine-tuned dense model."""
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "classifier_dropout": 0.0}
    labels = {"id2label": {0: "bad", 1: "good"}, "label2id": {"bad": 0, "good": 1}}
    tokenizer = make_tokenizer()
    torch.manual_seed(0)
    config = make_config(family, num_hidden_layers=layers, vocab_size=len(tokenizer), **(still | labels | changes))
    randomise(AutoModelForSequenceClassification.from_config(config)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return open_backbone(str(folder), TASK, None)


def make_batch(config: Any, batch: int = 5, length: int = 12) -> Batch:
    """Return texts of several lengths, padded on the right, with labels."""
    mask = make_mask("right", batch, length)
    inputs = {"input_ids": padded(make_ids(batch, length) % config.vocab_size, mask, config), "attention_mask": mask}
    return Batch(tuple(range(batch)), inputs, torch.ones(batch, dtype=torch.long), torch.arange(batch) % 2)


def longer(batch: Batch, by: int = 3) -> Batch:
    """Return the same batch with more padding, whose ids are words."""
    more = {
        name: torch.nn.functional.pad(tensor, (0, by), value=7 if name == "input_ids" else 0)
        for name, tensor in batch.inputs.items()
    }
    return replace(batch, inputs=more)


def run_on_tiny_data(
    method: str, backbone: Path, output: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind = Kind.CLASSES
) -> RunResult:
    """Run a method on a task that it can learn in seconds."""
    data = make_data(kind, recipe=replace(RECIPE, epochs=4.0, learning_rate=4e-3))
    monkeypatch.setattr("hashee.study.run.study_data", lambda task, limits: data)
    return run_experiment(Experiment(method, data.task.name, str(backbone)), output, keep_models=True)
