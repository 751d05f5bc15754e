"""A tagger with a classifier of words after every layer, for token-level difficulty."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from hashee.data.task_types import type_of
from hashee.engine.encoder import EncoderState, Reads
from hashee.export.loading import load
from hashee.study.multi_exit import EXITS, MultiExitModel, head_dropout
from hashee.study.objectives import ExitLosses
from hashee.training.evaluation import for_each_example, scores
from hashee.training.lesson import Lesson
from hashee.training.objective import TargetLoss
from hashee.training.stages import Fit


class WordClassifier(nn.Module):
    """A linear classifier of every token's state."""

    reads: Reads = "all"

    def __init__(self, width: int, labels: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(width, labels)

    def forward(self, state: EncoderState) -> Tensor:
        """Return the logits of all tokens: (sequences, longest, labels)."""
        logits: Tensor = self.out(self.dropout(state.unpacked()))
        return logits


def token_exits(model: Any) -> MultiExitModel:
    """Put new classifiers of words on every layer of a packed tagger; its own head is not used."""
    config, layers = model.config, int(model.exit_table.num_layers)
    made = [WordClassifier(config.hidden_size, config.num_labels, head_dropout(config)) for _ in range(layers)]
    return MultiExitModel(model, nn.ModuleList(made))


def open_token_exits(folder: Path) -> MultiExitModel:
    """Open what training wrote."""
    opened = token_exits(load(folder))
    opened.load_state_dict(load_file(folder / EXITS), strict=False)
    return opened.eval()


def train_token_exits(fit: Fit, folder: Path) -> MultiExitModel:
    """Train encoder and classifiers together on tags, and return the best on dev by the mean over all layers."""
    torch.manual_seed(fit.settings.seed)
    exits = token_exits(fit.backbone.packed(fit.backbone.load(fit.settings.seed)))
    objective = ExitLosses(TargetLoss(type_of(fit.data.task)))
    job = fit.job("token exits", exits, Lesson(objective, fit.train))
    fit.train_into(folder, replace(job, dev_metrics=_mean_over_layers(fit)))
    return open_token_exits(folder).to(fit.processes.device)


def word_logits_by_layer(fit: Fit, model: MultiExitModel, tokenized: Any) -> list[Any]:
    """Return for each text the logits of its words after each layer: (layers, words, labels), NaN where truncated."""

    def run(inputs: Any) -> list[Any]:
        exits = model(**inputs).exits
        return list(torch.stack([each.logits.float().cpu() for each in exits], dim=1).numpy())

    found = for_each_example(model, tokenized, fit.processes, run)
    return [[tokenized.word_logits(index, layer) for layer in row] for index, row in enumerate(found)]


def _mean_over_layers(fit: Fit) -> Callable[[Any], dict[str, float]]:
    def metrics(model: Any) -> dict[str, float]:
        rows = word_logits_by_layer(fit, model, fit.dev)
        layers = [
            scores(fit.data.task, [row[layer] for row in rows], fit.data.dev.targets or ())
            for layer in range(model.layers)
        ]
        mean = {name: sum(each[name] for each in layers) / len(layers) for name in layers[0]}
        return mean | {"last": layers[-1]["score"]}

    return metrics
