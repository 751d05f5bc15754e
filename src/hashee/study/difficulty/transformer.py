"""A Transformer that is fine-tuned to predict difficulty: the paper's BERT, with any backbone."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import TrainerCallback

from hashee.data import TaskData
from hashee.data.fingerprint import fingerprint_of
from hashee.data.splits import first_of_shuffled
from hashee.data.tokenized import Tokenized
from hashee.export.loading import load
from hashee.files import read_json, write_json
from hashee.study.difficulty.datasets import LABELS, DifficultySet, flat_targets
from hashee.study.difficulty.judgement import judge, merit
from hashee.study.difficulty.predictor import CURVE_EXAMPLES, Fitted, PredictorSettings
from hashee.study.difficulty.results import Epoch
from hashee.study.difficulty.sampling import Splits
from hashee.training.callbacks import SCORE
from hashee.training.evaluation import logits_for
from hashee.training.lesson import Lesson
from hashee.training.objective import TargetLoss
from hashee.training.processes import Processes, current_processes
from hashee.training.settings import FitSettings
from hashee.training.stages import Fit

Array = NDArray[Any]
EPOCHS = {"human": 10.0, "sentence": 3.0, "token": 5.0}
"""Passes; human-defined difficulty is trained until train is fitted, as in the paper's figure."""
_CURVE = "curve.json"


class Transformer:
    """A fine-tuned Transformer with an output for each layer, of a text or of each of its words."""

    name = "Transformer"
    reads_backbone = True

    def refuse(self, data: DifficultySet, settings: PredictorSettings) -> None:
        """Refuse nothing: the outputs are the head's, whatever the depth."""

    def fit(self, splits: Splits, settings: PredictorSettings, work: Path) -> Fitted:
        """Train on the packed engine, from checkpoint to checkpoint; keep the pass that is best on dev."""
        fingerprint = fingerprint_of(splits.task, splits.train, splits.dev, splits.test)
        data = TaskData(splits.task, splits.train, splits.dev, splits.test, fingerprint)
        processes = current_processes()
        fit = Fit(
            FitSettings(
                task=data,
                output=work,
                backbone=settings.backbone,
                seed=settings.seed,
                epochs=settings.epochs or EPOCHS[splits.level],
                learning_rate=settings.learning_rate,
                max_length=settings.max_length,
                bf16=settings.bf16,
                quiet=True,
            ),
            data,
            processes,
        )
        some = first_of_shuffled(splits.seen, CURVE_EXAMPLES, settings.seed)
        examples = {"dev": splits.dev, "train": some, "test": splits.test}
        parts = {name: fit.encoder(each) for name, each in examples.items()}
        targets = {name: flat_targets(splits.level, each) for name, each in examples.items()}

        def metrics(model: Any) -> dict[str, float]:
            found = {
                name: judge(probabilities(model, tokenized, processes), targets[name])
                for name, tokenized in parts.items()
            }
            accuracies = {f"{name}_accuracy": judgement.accuracy for name, judgement in found.items()}
            return {"score": merit(splits.level, found["dev"]), **accuracies}

        folder = work / "transformer"
        packed = fit.backbone.packed(fit.backbone.load(settings.seed))
        # The loss of several labels serves words as well: both come as (predictions, layers).
        job = fit.job("difficulty", packed, Lesson(TargetLoss(LABELS), fit.train))
        job = replace(job, dev_metrics=metrics, callbacks=(_Curve(folder / _CURVE),))
        fit.train_into(folder, job)
        test = probabilities(load(folder).to(processes.device), parts["test"], processes)
        curve = (read_json(folder / _CURVE) or {}).get("epochs", ())
        return Fitted(test, tuple(Epoch(**epoch) for epoch in curve))


class _Curve(TrainerCallback):
    """Keeps the accuracies of every pass in a file, those before an interruption included."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write the whole curve, which the history of the Trainer has."""
        rows = [
            {
                "epoch": row["epoch"],
                "train_accuracy": row["eval_train_accuracy"],
                "test_accuracy": row["eval_test_accuracy"],
                "dev": row[SCORE],
            }
            for row in state.log_history
            if SCORE in row
        ]
        write_json(self.path, {"epochs": rows})


def probabilities(model: Any, tokenized: Tokenized, processes: Processes) -> Array:
    """Return the probabilities that layers are right: (instances, layers), NaN for words that were truncated."""
    logits = logits_for(model, tokenized, processes)
    rows = np.stack(logits) if tokenized.starts is None else np.concatenate(logits)
    found: Array = 1 / (1 + np.exp(-rows.astype(np.float64)))
    return found
