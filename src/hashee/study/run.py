"""One run of the study: train a method, sweep its knob on dev and test, write the result."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from hashee.cost.macs import BERT_BASE, dense_macs
from hashee.data import Examples, TaskData
from hashee.data.metrics import judged_by
from hashee.data.predictions import scores
from hashee.data.tokenized import Tokenized
from hashee.families.adapters import adapter_for
from hashee.files import sha256_of_file, sha256_of_json
from hashee.study.data import study_data
from hashee.study.methods import METHODS
from hashee.study.results import PATHS, OperatingPoint, RunResult, read_result
from hashee.study.writing import DenseWriting, dense_writing
from hashee.training.evaluation import Predictions
from hashee.training.method import Method, method_named
from hashee.training.outcome import hardware, versions
from hashee.training.processes import current_processes
from hashee.training.settings import FitSettings
from hashee.training.stages import WORK, Candidate, Choice, Fit

__all__ = ["METHODS", "Experiment", "run_experiment"]

KEPT = "kept"
"""File in a work folder whose models are not deleted."""


@dataclass(frozen=True)
class Experiment:
    """What is run: a method on a task with a backbone and a seed."""

    method: str
    task: str | TaskData
    backbone: str = "minilm"
    seed: int = 0
    limits: tuple[int | None, int | None, int | None] = (None, None, None)
    """Examples of train, dev and test, drawn with seed 0; None for all."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Of `FitSettings`, such as epochs; passes are twice the epochs for every method."""

    @property
    def name(self) -> str:
        """How it is called in messages."""
        task = self.task.task.name if isinstance(self.task, TaskData) else Path(self.task).stem
        return f"{self.method} on {task}, {Path(self.backbone).name}, seed {self.seed}"

    @property
    def recorded_settings(self) -> dict[str, Any]:
        """The settings as results have them: files by their names, wherever they lie."""
        return {name: Path(value).name if name in PATHS and value else value for name, value in self.settings.items()}

    def fingerprint(self, data: TaskData) -> str:
        """Return what the result depends on, as one number."""
        own: dict[str, Any] = {
            "method": self.method,
            "backbone": Path(self.backbone).name,
            "seed": self.seed,
            "settings": self.recorded_settings,
        }
        unlabelled = self.settings.get("unlabelled")
        if unlabelled and Path(unlabelled).is_file():
            own["unlabelled"] = sha256_of_file(Path(unlabelled))
        return sha256_of_json(own | {"data": data.fingerprint})


def run_experiment(experiment: Experiment, output: Path, keep_models: bool = False) -> RunResult:
    """Run an experiment and write its result below a folder, unless it is there and not stale.

    Models lie in OUTPUT/work; the dense model there serves all methods of the same task, backbone and seed. Where
    models were kept once, later runs keep theirs too; without models to keep, a result that is there is made again.
    """
    method = method_named(experiment.method)
    data = judged_by(study_data(experiment.task, experiment.limits), experiment.settings.get("metric"))
    result = _empty(experiment, data, method)
    done = output / result.path
    known = read_result(done) if done.exists() else None
    if known is not None and known.fingerprint == result.fingerprint and (not keep_models or known.has_models(output)):
        return known
    result = replace(result, not_applicable=method.refusal(data.task))
    if result.not_applicable is None:
        work = output / result.work
        with _alone(work):
            result = _measured(experiment, data, method, result, work)
            if keep_models:
                (work / KEPT).touch()
            elif not (work / KEPT).exists():
                _drop_models(work / WORK)
    result.write(output)
    return result


def _empty(experiment: Experiment, data: TaskData, method: Method) -> RunResult:
    test = data.test
    sizes = {"train": len(data.train), "dev": len(data.dev), "test": 0 if test is None else len(test)}
    return RunResult(
        method=method.name,
        task=data.task.name,
        backbone=Path(experiment.backbone).name,
        seed=experiment.seed,
        knob=method.knob,
        metric=data.task.metric,
        data={"fingerprint": data.fingerprint, "sizes": sizes, "notes": list(data.notes)},
        settings=experiment.recorded_settings,
        fingerprint=experiment.fingerprint(data),
        versions=versions(),
    )


def _measured(experiment: Experiment, data: TaskData, method: Method, result: RunResult, work: Path) -> RunResult:
    """Train the method and sweep its knob."""
    processes = current_processes()
    own: dict[str, Any] = {
        "task": data,
        "output": work,
        "backbone": experiment.backbone,
        "seed": experiment.seed,
        "quiet": True,
    }
    fit = Fit(FitSettings(**(own | experiment.settings)), data, processes)
    choice = method.train(fit)
    splits = {"dev": fit.judged_dev}
    if data.test is not None and data.test.targets is not None:
        splits["test"] = (fit.encoder(data.test), data.test)
    last = splits.get("test", splits["dev"])[0]
    lengths = last.lengths
    shape = adapter_for(fit.backbone.config).shape(fit.backbone.config)
    dense = dense_writing(fit, last)
    full_depth = dense_macs(shape, shape.layers, lengths) / len(lengths) if dense is None else dense.per_text("total")
    result = replace(
        result,
        passes=max(candidate.passes or 0.0 for candidate in choice.candidates),
        seconds=_seconds(choice),
        layers=shape.layers,
        full_depth_macs=full_depth,
        bert_base_macs=dense_macs(BERT_BASE, BERT_BASE.layers, lengths) / len(lengths),
        hardware=hardware(processes),
    )
    measured = _Measured(fit, method, splits, full_depth, dense)
    points = tuple(point for candidate in choice.candidates for point in measured.points(candidate))
    best = max(points, key=lambda point: (point.dev, point.speedup))
    return replace(result, curve=points, quality={"dev": best.dev, "test": best.test})


@dataclass(frozen=True)
class _Measured:
    """What the models of a method are measured on, and against what."""

    fit: Fit
    method: Method
    splits: dict[str, tuple[Tokenized, Examples]]
    full_depth: float
    """Multiply-accumulates of the whole backbone per text."""
    dense: DenseWriting | None
    """What the dense baseline wrote, where text is written."""

    def points(self, candidate: Candidate) -> Iterator[OperatingPoint]:
        """Yield the operating points of one of the method's models."""
        fit, method = self.fit, self.method
        model = method.open(candidate.folder).to(fit.processes.device)
        knobs = method.knobs(model)
        swept = {
            split: method.sweep(model, encoded, fit.processes, knobs) for split, (encoded, _) in self.splits.items()
        }
        for number, knob in enumerate(knobs):
            found = {split: predicted[number] for split, predicted in swept.items()}
            metrics = {split: self._metrics(split, each) for split, each in found.items()}
            last = found["test" if "test" in found else "dev"]
            executed, paper = float(np.mean(last.costs.executed)), float(np.mean(last.costs.paper))
            written, dense = last.writing, self.dense
            yield OperatingPoint(
                knob=knob,
                dev=metrics["dev"]["score"],
                test=metrics["test"]["score"] if "test" in metrics else None,
                executed_macs=executed,
                paper_macs=paper,
                # What only copies text has nothing to count.
                speedup=self.full_depth / max(executed, 1.0),
                paper_speedup=self.full_depth / max(paper, 1.0),
                candidate=candidate.hash,
                model=os.path.relpath(candidate.folder, fit.folder),
                writing=None if dense is None or written is None else dense.point(written, metrics),
            )

    def _metrics(self, split: str, found: Predictions) -> dict[str, float]:
        return scores(self.fit.data.task, found.logits, self.splits[split][1].targets or ())


def _seconds(choice: Choice) -> float:
    dense = choice.dense
    shared = dense.record.seconds if dense is not None and dense.record is not None else 0.0
    return shared + sum(each.record.seconds + each.table_seconds + each.start_seconds for each in choice.candidates)


def _drop_models(work: Path) -> None:
    """Delete what a method left, but for the dense model, which others of the same folder use."""
    for path in work.glob("*"):
        if path.is_dir() and not path.name.startswith("dense-"):
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _alone(work: Path) -> Iterator[None]:
    """Wait until no other process works in a folder; the system ends the lock with the process."""
    work.parent.mkdir(parents=True, exist_ok=True)
    with Path(f"{work}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
