"""DAT (Elbayad et al., ICLR 2020): the depth-adaptive Transformer, its variant with confidence thresholding."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from hashee.data import Task
from hashee.data.summaries import TokenizedSummaries
from hashee.data.tokenized import Tokenized
from hashee.study.depth_adaptive import DepthAdaptiveModel, write_adaptively
from hashee.study.objectives import ExitLosses
from hashee.study.refusals import refuse_without_writing
from hashee.training.evaluation import Predictions
from hashee.training.lesson import Lesson
from hashee.training.method import register_method
from hashee.training.objective import TargetLoss
from hashee.training.processes import Processes
from hashee.training.stages import WORK, Candidate, Choice, Fit

THRESHOLDS = (1.01, 0.85, 0.7, 0.5, 0.3, 0.15)
"""From one that no token reaches; label smoothing keeps probabilities below 1."""


class Dat:
    """The decoder may stop after every layer, token by token; the states of a token that stopped are copied upward."""

    name = "dat"
    knob = "confidence"

    def refusal(self, task: Task) -> str | None:
        """Refuse models without a decoder."""
        return refuse_without_writing(self.name, task)

    def train(self, fit: Fit) -> Choice:
        """Train all exits together with equal weights (aligned training), for as many passes as others have in all."""
        model = DepthAdaptiveModel.of(fit.backbone.load(fit.settings.seed))
        recipe = replace(fit.recipe, epochs=2 * fit.recipe.epochs)
        job = fit.job(self.name, model, Lesson(ExitLosses(TargetLoss(fit.task_type)), fit.train))
        # The names of parameters begin with that of the model inside.
        job = replace(job, recipe=recipe, rates={f"model.{name}": times for name, times in job.rates.items()})
        folder = fit.folder / WORK / self.name
        record = fit.train_into(folder, job)
        return Choice(fit, [Candidate(self.name, folder, None, record, 0.0, recipe.epochs)])

    def open(self, folder: Path) -> DepthAdaptiveModel:
        """Return the model with its exits."""
        return DepthAdaptiveModel.from_folder(folder)

    def knobs(self, model: DepthAdaptiveModel) -> Sequence[float]:
        """Return thresholds from one that nobody reaches."""
        return THRESHOLDS

    def run(self, model: DepthAdaptiveModel, inputs: Mapping[str, Tensor], knob: float) -> Tensor:
        """Score the next tokens with exits: (batch, targets, vocabulary)."""
        with model.exiting_at(knob):
            logits: Tensor = model.model(**inputs).logits
        return logits

    def predict(
        self, model: DepthAdaptiveModel, tokenized: Tokenized, processes: Processes, knob: float
    ) -> Predictions:
        """Write texts with exits by confidence."""
        assert isinstance(tokenized, TokenizedSummaries)  # other tasks are refused
        return write_adaptively(model, tokenized, processes, knob)

    def sweep(
        self, model: DepthAdaptiveModel, tokenized: Tokenized, processes: Processes, knobs: Sequence[float]
    ) -> list[Predictions]:
        """Write once for each threshold: what is written depends on where tokens before it exited."""
        return [self.predict(model, tokenized, processes, knob) for knob in knobs]


register_method(Dat())
