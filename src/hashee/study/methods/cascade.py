"""CascadeBERT (Li et al., Findings of EMNLP 2021): a small complete model, and a large one for what it is unsure of.

The small model is trained to be surer of easy examples than of hard ones. The paper calls an example hard that several
trained models get wrong; here it is one that the large model gets wrong.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hashee.data import Task
from hashee.data.task_types import type_of
from hashee.data.tokenized import Tokenized
from hashee.errors import InputError
from hashee.export.loading import load
from hashee.files import sha256_of_json
from hashee.study.cascade import CascadeModel, DifficultyMargin, models_passed, write_cascade
from hashee.study.methods.first_layers import DENSE
from hashee.study.students import depth_at
from hashee.tables.table import tokenizer_fingerprint
from hashee.training.backbone import open_backbone, weights_fingerprint
from hashee.training.evaluation import Array, Predictions, for_each_example
from hashee.training.lesson import Lesson
from hashee.training.method import register_method
from hashee.training.objective import TargetLoss, WeightedSum
from hashee.training.processes import Processes
from hashee.training.stages import WORK, Candidate, Choice, Fit
from hashee.training.teacher import StoredLogits, teacher_logits

SHARES = (0.5, 1 / 3)
"""Of the layers that small models have."""
THRESHOLDS = (1.01, 0.999, 0.998, 0.995, 0.99, 0.98, 0.97, 0.95, 0.92, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6, 0.55, 0.0)
"""From one that nobody reaches to one that everybody does."""


@dataclass(frozen=True)
class SmallModel:
    """The first model of a cascade before it is trained."""

    name: str
    model: Any


@dataclass(frozen=True)
class Cascade:
    """Two complete models; a text goes on to the large one if the small one is not sure enough."""

    name: str = "cascadebert"
    small_backbone: str | None = None
    """A complete smaller model with the same tokenizer; without it, the backbone's first layers."""
    margin: float = 0.3
    """By how much the small model should be surer of an easy example than of a hard one."""
    weight: float = 0.5
    """Of that in the loss."""
    knob: str = "confidence"

    def refusal(self, task: Task) -> str | None:
        """Refuse tasks of which a text has no one distribution over classes."""
        if type_of(task).one_decision:
            return None
        return f"{self.name} needs one class for each text to be sure of; {task.name} is {task.kind}"

    def train(self, fit: Fit) -> Choice:
        """Train the large model as the dense baseline is; then small ones, told by it which examples are hard.

        Each of them has as many passes as the one model of another method.
        """
        large = DENSE.train(fit).best
        teacher, fingerprint = difficulty_of(fit, large)
        parts = ((1.0, TargetLoss(type_of(fit.data.task))), (self.weight, DifficultyMargin(self.margin)))
        depends = {"teacher": fingerprint, "difficulty": [self.margin, self.weight]}
        lesson = Lesson(WeightedSum(parts), fit.train, teacher, depends)
        # Small models have one stage, as the large one has, of as many passes as others have in two.
        recipe = replace(fit.recipe, epochs=2 * fit.recipe.epochs)
        candidates: list[Candidate] = []
        for small in first_layers(fit) if self.small_backbone is None else [self._complete_model(fit)]:
            folder = fit.folder / WORK / f"{self.name}-{small.name.replace(' ', '-')}"
            job = replace(fit.job(f"{self.name}, {small.name}", small.model, lesson), recipe=recipe)
            record = fit.train_into(folder, job, lesson.depends)
            cascade = folder.with_name(f"{folder.name}-and-large")
            fit.processes.main_only(partial(write_cascade, cascade, [folder, large.folder]))
            # The large model is trained once for all candidates.
            seconds = 0.0 if candidates else large.record.seconds
            candidates.append(Candidate(small.name, cascade, None, record, seconds, recipe.epochs))
        return Choice(fit, candidates)

    def _complete_model(self, fit: Fit) -> SmallModel:
        """Return the smaller backbone."""
        backbone = open_backbone(str(self.small_backbone), fit.data.task, None)
        if tokenizer_fingerprint(backbone.tokenizer) != tokenizer_fingerprint(fit.backbone.tokenizer):
            raise InputError(f"{self.small_backbone} and {fit.settings.backbone} have different tokenizers")
        longest = backbone.adapter.max_length(backbone.config)
        if longest < fit.encoder.max_length:
            raise InputError(
                f"{self.small_backbone} takes {longest} tokens but texts have up to {fit.encoder.max_length}; "
                f"set max_length to {longest}"
            )
        model = backbone.packed(backbone.load(fit.settings.seed))
        return SmallModel(f"{backbone.layers} layers", model)

    def open(self, folder: Path) -> CascadeModel:
        """Return the models of a cascade."""
        return CascadeModel.from_folder(folder)

    def knobs(self, model: CascadeModel) -> Sequence[float]:
        """Return thresholds from one that nobody reaches to one that everybody does."""
        return THRESHOLDS

    def run(self, model: CascadeModel, inputs: Mapping[str, Tensor], knob: float) -> Tensor:
        """Run the large model on the texts of a batch that the small one is not sure enough of."""
        return model.leave(inputs, knob)[0]

    def predict(self, model: CascadeModel, tokenized: Tokenized, processes: Processes, knob: float) -> Predictions:
        """Run batches of like cost, and count the models that each text passed."""

        def run(inputs: Mapping[str, Tensor]) -> list[tuple[Array, int]]:
            logits, passed = model.leave(inputs, knob)
            return list(zip(logits.float().cpu().numpy(), passed.tolist(), strict=True))

        found = for_each_example(model, tokenized, processes, run)
        passed = np.array([number for _, number in found], dtype=np.int64)
        return Predictions([logits for logits, _ in found], model.costs(tokenized).at(passed))

    def sweep(
        self, model: CascadeModel, tokenized: Tokenized, processes: Processes, knobs: Sequence[float]
    ) -> list[Predictions]:
        """Run all models once: what a text is told does not depend on which others go on."""
        rows = for_each_example(model, tokenized, processes, lambda inputs: model(**inputs).float().cpu().unbind(0))
        logits, costs = torch.stack(rows), model.costs(tokenized)
        found = []
        for knob in knobs:
            passed = models_passed(logits, knob)
            chosen = logits[torch.arange(len(passed)), passed - 1]
            found.append(Predictions(list(chosen.numpy()), costs.at(passed.numpy())))
        return found


def first_layers(fit: Fit) -> Iterator[SmallModel]:
    """Yield models of the backbone's first layers."""
    for depth in sorted({depth_at(share, fit.backbone.layers) for share in SHARES}, reverse=True):
        model = fit.backbone.packed(fit.backbone.load(fit.settings.seed, depth))
        yield SmallModel(f"{depth} layers", model)


def difficulty_of(fit: Fit, large: Candidate) -> tuple[StoredLogits, str]:
    """Return the large model's logits for the training examples, and a fingerprint of what they depend on."""
    model = load(large.folder).to(fit.processes.device)
    depends = {"weights": weights_fingerprint(model), "data": fit.data.fingerprint}
    fingerprint = sha256_of_json(depends | {"max_length": fit.encoder.max_length})
    path = fit.folder / WORK / "large.safetensors"
    logits = teacher_logits(path, fingerprint, model, fit.train, fit.processes)
    return StoredLogits(logits, fit.train.starts), fingerprint


register_method(Cascade())
