"""Many runs from one file: what is missing or stale is run, side by side if asked for, the rest is left alone."""

import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from hashee.errors import HasheeError, InputError
from hashee.study.ray_engine import run_on_ray
from hashee.study.results import PATHS, RunResult
from hashee.study.run import Experiment
from hashee.study.workers import PROCESSES, Report, Workers, outcomes_of, run_here, run_in_processes
from hashee.training.method import method_named
from hashee.training.settings import FitSettings

_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))", re.ASCII)


@dataclass(frozen=True)
class Block:
    """Runs of every combination of tasks, methods, backbones and seeds."""

    tasks: Sequence[str]
    methods: Sequence[str]
    backbones: Sequence[str] = ("minilm",)
    """Folders, Hub ids or minilm; `~` and environment variables are put in, here and in settings that are paths."""
    seeds: int = 1
    limits: Mapping[str, int] = field(default_factory=dict)
    """Examples of train, dev and test, where not all of them are used."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of `FitSettings`."""

    def __post_init__(self) -> None:
        known = {each.name for each in fields(FitSettings)}
        for name in self.settings:
            if name not in known:
                raise InputError(f"there is no setting {name!r}; the settings are those of `hashee fit`")
        for name in self.limits:
            if name not in ("train", "dev", "test"):
                raise InputError(f"limits are for train, dev and test, not {name!r}")
        for name in self.methods:
            method_named(name)
        if self.seeds < 1:
            raise InputError(f"seeds is {self.seeds}; run at least one")
        paths = {name: expanded(str(self.settings[name])) for name in PATHS if self.settings.get(name)}
        object.__setattr__(self, "settings", {**self.settings, **paths})
        object.__setattr__(self, "backbones", [expanded(backbone) for backbone in self.backbones])

    def experiments(self) -> list[Experiment]:
        """Return the runs, those that share a dense model next to each other."""
        limits = (self.limits.get("train"), self.limits.get("dev"), self.limits.get("test"))
        order = product(self.tasks, self.backbones, range(self.seeds), self.methods)
        return [
            Experiment(method, task, backbone, seed, limits, dict(self.settings))
            for task, backbone, seed, method in order
        ]


def expanded(path: str) -> str:
    """Return a path with the home folder for `~` and values for environment variables, `$HASHEE_MODELS/gte-small`."""
    for braced, plain in _VARIABLE.findall(path):
        if not os.environ.get(braced or plain):
            raise InputError(f"{path} needs the environment variable {braced or plain}, which is not set; export it")
    full = os.path.expandvars(path)
    return str(Path(full).expanduser()) if full.startswith("~") else full


@dataclass(frozen=True)
class Grid:
    """A file of blocks, and where their results go."""

    blocks: tuple[Block, ...]
    output: Path = Path("results/study")

    def experiments(self) -> list[Experiment]:
        """Return all runs."""
        return [experiment for block in self.blocks for experiment in block.experiments()]


def read_grid(path: Path) -> Grid:
    """Read a TOML file with `output` and tables `[[runs]]` of a block's fields."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"cannot read runs from {path}: {error}") from None
    rows = values.pop("runs", None)
    if not isinstance(rows, list) or not rows:
        raise InputError(f"{path} has no [[runs]]; see experiments/elue.toml")
    known = {each.name for each in fields(Block)}
    for row in rows:
        for name in row:
            if name not in known:
                raise InputError(f"{path}: [[runs]] has {name!r}; its fields are {', '.join(sorted(known))}")
        for name in ("tasks", "methods"):
            if not isinstance(row.get(name), list) or not row[name]:
                raise InputError(f"{path}: [[runs]] needs {name}, a list of names")
    output = Path(values.pop("output", "results/study"))
    if values:
        raise InputError(f"{path} has {min(values)!r}, which means nothing; fields are output and [[runs]]")
    return Grid(tuple(Block(**row) for row in rows), output)


def run_all(
    experiments: Iterable[Experiment],
    output: Path,
    report: Report,
    workers: Workers | None = None,
    keep_models: bool = False,
) -> list[RunResult]:
    """Run what is missing or stale. A run that fails is reported and the others go on.

    workers: default: this process; runs that share a dense model stay in one of them. keep_models: for the clock.
    """
    workers = workers or Workers()
    together: dict[tuple[Any, ...], list[Experiment]] = {}
    for experiment in experiments:
        together.setdefault((experiment.task, experiment.backbone, experiment.seed), []).append(experiment)
    groups = list(together.values())
    found: list[RunResult] = []

    def keep_and_report(experiment: Experiment, outcome: RunResult | HasheeError) -> None:
        found.extend([outcome] if isinstance(outcome, RunResult) else [])
        report(experiment, outcome)

    output = output.absolute()
    threads = workers.threads if workers.single else workers.threads or 1
    work = partial(outcomes_of, output=output, keep_models=keep_models, threads=threads)
    if workers.single:
        run_here(groups, work, keep_and_report)
    elif workers.engine == PROCESSES:
        run_in_processes(groups, work, keep_and_report, workers.jobs or 1)
    else:
        run_on_ray(groups, work, keep_and_report, output, workers)
    return found
