"""Could learned exits work on a user's task, and what does a hash give instead? Measured on texts held out."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hashee.data import Examples, TaskData
from hashee.data.fingerprint import fingerprint_of
from hashee.data.splits import cut_off_dev
from hashee.data.task_types import type_of
from hashee.errors import InputError
from hashee.files import write_json
from hashee.study.data import study_data
from hashee.study.difficulty.building_model import FEWEST_LAYERS, divided
from hashee.study.difficulty.comparisons import Arm, Exits, compare, full_depth_macs, learned_exits, right_of
from hashee.study.difficulty.datasets import FEWEST, DifficultySet, checked, save_set
from hashee.study.difficulty.hypothesis_results import Comparison
from hashee.study.difficulty.results import DifficultyResult
from hashee.study.difficulty.run import Block, run_trial
from hashee.study.methods import METHODS
from hashee.training.backbone import open_backbone
from hashee.training.hash_exits import HashExits
from hashee.training.processes import current_processes
from hashee.training.settings import FitSettings
from hashee.training.stages import Fit

POOL_SHARE = 0.3
"""Of the rows, held out to be labelled where the task has no labelled test split."""
TEST_SHARE = 0.4
"""Of the labelled texts, on which predictors of difficulty are judged."""
WORK = "work"


@dataclass(frozen=True)
class ProbeSettings:
    """What is probed, with what."""

    task: str | TaskData
    output: Path
    backbone: str = "minilm"
    limit: int | None = None
    """Train on so many examples only."""
    speedup: float = 3.0
    """That a hash is solved for, and at which exits are compared."""
    predictors: tuple[str, ...] = ("majority", "linear-m", "linear-b", "bilstm")
    seed: int = 0
    fit: dict[str, Any] = field(default_factory=dict)
    """Of `FitSettings`, such as epochs."""


@dataclass(frozen=True)
class Point:
    """Accuracy in percent at a speed-up."""

    speedup: float
    accuracy: float


@dataclass(frozen=True)
class Probe:
    """What was found, all of it on texts that no model was trained on."""

    task: str
    backbone: str
    texts: int
    """Held out."""
    right: tuple[float, ...]
    """Share of texts that each layer predicts rightly."""
    predictors: tuple[DifficultyResult, ...]
    learned: tuple[Point, ...]
    """The learned exit at all its thresholds."""
    shuffled: tuple[Point, ...]
    """The same exits shuffled between texts."""
    oracle: Point
    """Who would know at which layer a text is predicted rightly first."""
    dense: Point
    hash: Point
    against_shuffled: Comparison
    against_hash: Comparison
    """The hash against the learned exit, at about the same cost."""
    notes: tuple[str, ...] = ()

    def write(self, folder: Path) -> Path:
        """Write all numbers as `probe.json`."""
        write_json(folder / "probe.json", asdict(self))
        return folder / "probe.json"


def probe(settings: ProbeSettings) -> Probe:
    """Train a model with learned exits, predictors of its mistakes, and a model with a hash; compare them."""
    data = _with_pool(study_data(settings.task, (settings.limit, None, None)), settings.seed)
    layers = open_backbone(settings.backbone, data.task, None).layers
    if layers < FEWEST_LAYERS:
        raise InputError(
            f"the backbone {Path(settings.backbone).name} has {layers} layer, so no text can leave earlier; "
            f"name one with at least {FEWEST_LAYERS}"
        )
    own: dict[str, Any] = {"task": data, "output": settings.output / WORK, "backbone": settings.backbone, "quiet": True}
    fit = Fit(FitSettings(**(own | {"seed": settings.seed} | settings.fit)), data, current_processes())
    pool = data.test
    assert pool is not None  # it was held out
    tokenized, processes = fit.encoder(pool), fit.processes
    full = full_depth_macs(fit, tokenized)
    berxit = METHODS["berxit"]
    model = berxit.open(berxit.train(fit).best.folder).to(processes.device)
    exits = learned_exits(model, tokenized, pool, processes)
    on_dev = learned_exits(model, fit.dev, data.dev, processes)
    hashed = _hashed(fit, settings.speedup, pool)
    # A threshold is chosen where nobody has looked at the texts that are compared.
    number = on_dev.nearest(full / hashed.executed_macs, full_depth_macs(fit, fit.dev))
    learned, shuffled = exits.at(number)
    dense = _predicted("dense", fit.dense().packed(), fit, pool)
    curves = [exits.at(number) for number in range(len(exits.layers))]
    return Probe(
        task=data.task.name,
        backbone=Path(settings.backbone).name,
        texts=len(pool),
        right=tuple(float(share) for share in exits.right.mean(axis=0)),
        predictors=tuple(_predictors(settings, data, pool, exits)),
        learned=tuple(_point(arm, full) for arm, _ in curves),
        shuffled=tuple(_point(arm, full) for _, arm in curves),
        oracle=_point(exits.oracle(), full),
        dense=_point(dense, full),
        hash=_point(hashed, full),
        against_shuffled=compare("learned exit against the same exits shuffled", learned, shuffled, full),
        against_hash=compare("hash against the learned exit", hashed, learned, full),
        notes=data.notes,
    )


def _with_pool(data: TaskData, seed: int) -> TaskData:
    """Return a task whose test split is what gets labelled: its own, or rows that are held out of train."""
    task_type = type_of(data.task)
    if not task_type.one_decision:
        raise InputError(f"a probe needs one class for each text; {data.task.name} is {data.task.kind}")
    if data.test is not None and data.test.targets is not None and len(data.test) >= 2 * FEWEST:
        return data
    train, pool = cut_off_dev(data.train, task_type, POOL_SHARE, seed)
    if len(pool) < 2 * FEWEST:
        needed = round(2 * FEWEST / POOL_SHARE)
        raise InputError(
            f"{data.task.name} has {len(data.train):,} rows to train on, too few to split: {len(pool)} would be held "
            f"out, and {2 * FEWEST} are needed; give about {needed} rows or a test file"
        )
    note = f"{len(pool):,} rows were held out of train to be labelled (seed {seed})"
    splits = (train, data.dev, pool)
    return TaskData(data.task, *splits, fingerprint_of(data.task, *splits), (*data.notes, note))


def _predictors(settings: ProbeSettings, data: TaskData, pool: Examples, exits: Exits) -> list[DifficultyResult]:
    """Let predictors learn which layers are right, and judge them on other texts."""
    labelled = Examples(pool.texts, [tuple(map(int, row)) for row in exits.right])
    train, test = divided(labelled, TEST_SHARE, settings.seed)
    made = checked(DifficultySet(f"{data.task.name}-{Path(settings.backbone).name}", "sentence", train, test))
    folder = save_set(made, settings.output / WORK / "set" / made.name)
    trials = Block([str(folder)], settings.predictors, [settings.backbone]).trials()
    return [run_trial(trial, settings.output / WORK / "predictors") for trial in trials]


def _hashed(fit: Fit, speedup: float, pool: Examples) -> Arm:
    method = METHODS["hash-importance"]
    best = method.train(fit.with_settings(speedup=speedup)).best
    return _predicted("hash", method.open(best.folder), fit, pool)


def _predicted(name: str, model: Any, fit: Fit, pool: Examples) -> Arm:
    found = HashExits().predict(model.to(fit.processes.device), fit.encoder(pool), fit.processes)
    return Arm(name, right_of(found.logits, pool), float(np.mean(found.costs.executed)))


def _point(arm: Arm, full_depth: float) -> Point:
    return Point(full_depth / arm.executed_macs, 100 * float(np.mean(arm.right)))
