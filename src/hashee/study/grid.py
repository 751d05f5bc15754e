"""Many runs from one file: what is missing or stale is run, in processes side by side, the rest is left alone."""

import multiprocessing
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, fields
from itertools import product
from pathlib import Path
from typing import Any

from hashee.cost.threads import torch_threads
from hashee.errors import HasheeError, InputError
from hashee.hf.pretrained import quiet_transformers
from hashee.study.results import PATHS, RunResult
from hashee.study.run import Experiment, run_experiment
from hashee.training.method import method_named
from hashee.training.settings import FitSettings

Report = Callable[[Experiment, RunResult | HasheeError], None]
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
    experiments: Iterable[Experiment], output: Path, report: Report, jobs: int = 1, keep_models: bool = False
) -> list[RunResult]:
    """Run what is missing or stale. A run that fails is reported and the others go on.

    jobs: processes side by side; runs that share a dense model stay in one of them. keep_models: for the clock.
    """
    groups: dict[tuple[Any, ...], list[Experiment]] = {}
    for experiment in experiments:
        groups.setdefault((experiment.task, experiment.backbone, experiment.seed), []).append(experiment)
    if jobs == 1:
        return [result for group in groups.values() for result in _run_group(group, output, report, keep_models)]
    found: list[RunResult] = []
    # Forked processes would inherit torch's threads in whatever state they are.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        running = {pool.submit(_outcomes_of, group, output, keep_models): group for group in groups.values()}
        for done in as_completed(running):
            for experiment, outcome in done.result():
                report(experiment, outcome)
                found += [outcome] if isinstance(outcome, RunResult) else []
    return found


def _outcomes_of(
    group: list[Experiment], output: Path, keep_models: bool
) -> list[tuple[Experiment, RunResult | HasheeError]]:
    """Run a group in a process of its own, on one thread."""
    outcomes: list[tuple[Experiment, RunResult | HasheeError]] = []
    with quiet_transformers(), torch_threads(1):
        _run_group(group, output, lambda experiment, outcome: outcomes.append((experiment, outcome)), keep_models)
    return outcomes


def _run_group(group: list[Experiment], output: Path, report: Report, keep_models: bool) -> list[RunResult]:
    found = []
    for experiment in group:
        try:
            result = run_experiment(experiment, output, keep_models)
        except HasheeError as error:
            report(experiment, error)
        else:
            report(experiment, result)
            found.append(result)
    return found
