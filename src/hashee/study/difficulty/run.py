"""Running predictors on sets of difficulties: what is missing or stale is run, the rest is left alone."""

import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from hashee.errors import HasheeError, InputError
from hashee.files import sha256_of_json
from hashee.study.difficulty.datasets import DifficultySet, flat_targets, load_set
from hashee.study.difficulty.judgement import judge
from hashee.study.difficulty.predictor import PredictorSettings
from hashee.study.difficulty.predictors import PREDICTORS, predictor_named
from hashee.study.difficulty.results import DifficultyResult, read_result
from hashee.study.difficulty.sampling import splits_of
from hashee.training.outcome import hardware, versions
from hashee.training.processes import current_processes

WORK = "work"
"""Folder below that of results for what is only needed until a run is finished."""
Report = Callable[["Trial", DifficultyResult | HasheeError], None]


@dataclass(frozen=True)
class Trial:
    """A predictor on a set with a backbone and a seed."""

    data: str
    """Name or folder of a set."""
    predictor: str
    settings: PredictorSettings = field(default_factory=PredictorSettings)

    @property
    def name(self) -> str:
        """How it is called in messages."""
        return f"{self.predictor} on {self.data}, {Path(self.settings.backbone).name}, seed {self.settings.seed}"


@dataclass(frozen=True)
class Block:
    """Trials of every combination of sets, predictors, backbones and seeds."""

    sets: Sequence[str]
    predictors: Sequence[str] = tuple(PREDICTORS)
    backbones: Sequence[str] = ("minilm",)
    seeds: int = 1
    settings: dict[str, Any] = field(default_factory=dict)
    """Of `PredictorSettings`."""

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise InputError(f"seeds is {self.seeds}; run at least one")
        for name in self.predictors:
            predictor_named(name)
        try:
            PredictorSettings(**self.settings)
        except TypeError:
            known = ", ".join(asdict(PredictorSettings()))
            raise InputError(f"unknown settings among {', '.join(self.settings)}; there are {known}") from None

    def trials(self) -> list[Trial]:
        """Return the trials; a predictor that reads no backbone is run once for all of them."""
        found = []
        for data in self.sets:
            for name in self.predictors:
                backbones = self.backbones if predictor_named(name).reads_backbone else self.backbones[:1]
                for backbone in backbones:
                    for seed in range(self.seeds):
                        settings = PredictorSettings(backbone=backbone, seed=seed, **self.settings)
                        found.append(Trial(data, name, settings))
        return found


def run_trial(trial: Trial, output: Path) -> DifficultyResult:
    """Run a trial and write its result below a folder, unless it is there and not stale."""
    predictor, data = predictor_named(trial.predictor), _loaded(trial.data)
    settings = trial.settings
    backbone = Path(settings.backbone).name if predictor.reads_backbone else ""
    own = {"predictor": predictor.name, "backbone": backbone, "seed": settings.seed, "settings": settings.recorded()}
    result = DifficultyResult(
        predictor=predictor.name,
        level=data.level,
        accuracy=0.0,
        precision=None,
        recall=0.0,
        f1=None,
        calibration_error=0.0,
        data=data.name,
        seed=settings.seed,
        backbone=backbone,
        settings=settings.recorded(),
        statistics=data.statistics(),
        about=data.about,
        fingerprint=sha256_of_json(own | {"data": data.fingerprint}),
        versions=versions(),
    )
    done = output / result.path
    if done.exists() and (known := read_result(done)).fingerprint == result.fingerprint:
        return known
    predictor.refuse(data, settings)
    work = output / WORK / result.path.with_suffix("")
    began = time.monotonic()
    fitted = predictor.fit(splits_of(data, settings.seed, settings.oversampling), settings, work)
    judged = judge(fitted.test, flat_targets(data.level, data.test))
    seconds = time.monotonic() - began
    result = replace(
        result, **asdict(judged), curve=fitted.curve, seconds=seconds, hardware=hardware(current_processes())
    )
    result.write(output)
    shutil.rmtree(work, ignore_errors=True)
    return result


def run_trials(trials: Iterable[Trial], output: Path, report: Report) -> list[DifficultyResult]:
    """Run what is missing or stale. A trial that fails is reported and the others go on."""
    found = []
    for trial in trials:
        try:
            result = run_trial(trial, output)
        except HasheeError as error:
            report(trial, error)
        else:
            report(trial, result)
            found.append(result)
    return found


@cache
def _loaded(data: str) -> DifficultySet:
    return load_set(data)


def applies(trial: Trial, tell: Callable[[str], None]) -> bool:
    """Say whether a predictor fits a set and a backbone; if not, tell why."""
    # A set that cannot be read is no matter of the predictor.
    data = _loaded(trial.data)
    try:
        predictor_named(trial.predictor).refuse(data, trial.settings)
    except HasheeError as error:
        tell(f"left out: {trial.name}: {error}")
        return False
    return True
