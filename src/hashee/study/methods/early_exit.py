"""What all methods with internal classifiers share: opening, predicting while sequences leave, sweeping the knob."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hashee.data import Task
from hashee.data.predictions import scores
from hashee.data.task_types import type_of
from hashee.data.tokenized import Tokenized
from hashee.study.cost import costs_by_exit
from hashee.study.exit_rules import ExitRule, exit_layers
from hashee.study.multi_exit import MultiExitModel
from hashee.study.refusals import refuse_writing
from hashee.training.evaluation import Array, Predictions, for_each_example
from hashee.training.outputs import ExitOutputs
from hashee.training.processes import Processes
from hashee.training.stages import WORK, Candidate, Choice, Fit
from hashee.training.trainer import TrainingJob

NEW_RATES = {"classifiers.": 20.0, "certainty.": 20.0}
"""Internal classifiers start from nothing: at the rate of a pretrained encoder, those of lower layers would still be
constant after a few passes."""


class EarlyExit(ABC):
    """A method whose sequences leave after the layer at which a rule lets them."""

    name: str
    knob: str
    for_scores: bool = False
    """Whether it applies to regression too."""

    @abstractmethod
    def rule(self, model: MultiExitModel, knob: float) -> ExitRule:
        """Return when sequences leave."""

    @abstractmethod
    def knobs(self, model: MultiExitModel) -> Sequence[float]:
        """Return the operating points that a model is compared at, the most costly first."""

    @abstractmethod
    def train(self, fit: Fit) -> Choice:
        """Build a model with internal classifiers and train it in stages."""

    def refusal(self, task: Task) -> str | None:
        """Refuse tasks of which a sequence has no one distribution over classes."""
        task_type = type_of(task)
        if task_type.writes_text:
            return refuse_writing(self.name, task)
        if task_type.one_decision or (not task_type.right_or_wrong and self.for_scores):
            return None
        return f"{self.name} needs one class for each text to be sure of; {task.name} is {task.kind}"

    def open(self, folder: Path) -> MultiExitModel:
        """Return the model with its classifiers."""
        return MultiExitModel.from_folder(folder)

    def run(self, model: MultiExitModel, inputs: Mapping[str, Tensor], knob: float) -> Tensor:
        """Let sequences leave the batch as soon as the rule lets them."""
        return model.leave(inputs, self.rule(model, knob))[0]

    def predict(self, model: MultiExitModel, tokenized: Tokenized, processes: Processes, knob: float) -> Predictions:
        """Run batches of like cost, and count each sequence up to the layer at which it left."""
        rule = self.rule(model, knob)

        def run(inputs: Mapping[str, Tensor]) -> list[tuple[Array, int]]:
            logits, layers = model.leave(inputs, rule)
            return list(zip(logits.float().cpu().numpy(), layers.tolist(), strict=True))

        found = for_each_example(model, tokenized, processes, run)
        layers = np.array([layer for _, layer in found], dtype=np.int64)
        return Predictions([logits for logits, _ in found], costs_by_exit(model, tokenized).at(layers))

    def sweep(
        self, model: MultiExitModel, tokenized: Tokenized, processes: Processes, knobs: Sequence[float]
    ) -> list[Predictions]:
        """Run all layers once: what a sequence is told does not depend on which others have left."""
        exits = outputs_by_layer(model, tokenized, processes)
        costs = costs_by_exit(model, tokenized)
        logits = torch.stack([each.logits for each in exits])
        found = []
        for knob in knobs:
            layers = exit_layers(exits, self.rule(model, knob))
            chosen = logits[layers - 1, torch.arange(len(layers))]
            found.append(Predictions(list(chosen.numpy()), costs.at(layers.numpy())))
        return found

    def trained(self, fit: Fit, job: TrainingJob, passes: float | None) -> Choice:
        """Train a model whose exits are judged together on dev, and return it as the only candidate.

        passes: over the training examples, on the way to the model and in this stage.
        """
        folder = fit.folder / WORK / self.name
        record = fit.train_into(folder, judged_by_exits(fit, job))
        return Choice(fit, [Candidate(self.name, folder, None, record, 0.0, passes)])


def outputs_by_layer(model: MultiExitModel, tokenized: Tokenized, processes: Processes) -> list[ExitOutputs]:
    """Return the outputs of every exit for all examples: logits (examples, labels), certainty (examples,)."""

    def run(inputs: Mapping[str, Tensor]) -> list[tuple[Tensor, Tensor | None]]:
        exits = model(**inputs).exits
        logits = torch.stack([each.logits.float().cpu() for each in exits], dim=1)
        if exits[0].certainty is None:
            return [(row, None) for row in logits]
        certainty = torch.stack([each.certainty.float().cpu() for each in exits], dim=1)
        return list(zip(logits, certainty, strict=True))

    rows = for_each_example(model, tokenized, processes, run)
    logits = torch.stack([row for row, _ in rows])
    certainty = None if rows[0][1] is None else torch.stack([row for _, row in rows])
    return [
        ExitOutputs(layer + 1, logits[:, layer], None if certainty is None else certainty[:, layer])
        for layer in range(logits.shape[1])
    ]


def judged_by_exits(fit: Fit, job: TrainingJob) -> TrainingJob:
    """Return the training of a model with internal classifiers: chosen by all of them, which learn faster."""
    return replace(job, dev_metrics=mean_over_exits(fit), rates=NEW_RATES)


def mean_over_exits(fit: Fit) -> Callable[[MultiExitModel], dict[str, float]]:
    """Return the metrics on dev that checkpoints are chosen by: the mean over all exits, and the last one's own."""

    def metrics(model: MultiExitModel) -> dict[str, float]:
        found = [
            scores(fit.data.task, list(each.logits.numpy()), fit.data.dev.targets or ())
            for each in outputs_by_layer(model, fit.dev, fit.processes)
        ]
        mean = {name: float(np.mean([each[name] for each in found])) for name in found[0]}
        return mean | {"last": found[-1]["score"]}

    return metrics


def freeze_(model: MultiExitModel) -> None:
    """Let only the internal classifiers learn."""
    for parameter in model.model.parameters():
        parameter.requires_grad_(False)
