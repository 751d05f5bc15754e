"""The paper's hypothesis, tested: is it consistency between training and inference that works, or what is learned?"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from hashee.data import Examples, TaskData
from hashee.data.task_types import type_of
from hashee.data.tokenized import Tokenized
from hashee.errors import InputError
from hashee.export.loading import load
from hashee.files import sha256_of_json, write_json
from hashee.study.data import Limits, study_data
from hashee.study.difficulty.comparisons import (
    Arm,
    compare,
    full_depth_macs,
    learned_exits,
    right_of,
)
from hashee.study.difficulty.hypothesis_results import (
    CONSISTENT,
    FOLDER,
    LEARNED,
    REFITTED,
    SWAPPED,
    Comparison,
    HypothesisResult,
    read_hypothesis,
)
from hashee.study.methods import METHODS
from hashee.tables.table import ExitTable
from hashee.training.hash_exits import HashExits
from hashee.training.outcome import versions
from hashee.training.processes import current_processes
from hashee.training.settings import FitSettings
from hashee.training.stages import WORK, Fit

SPEEDUPS = (1.5, 2.0, 3.0)
"""Costs at which learned exits are compared."""


@dataclass(frozen=True)
class HypothesisSettings:
    """What is compared on which task."""

    task: str | TaskData = "sst2"
    backbone: str = "minilm"
    seed: int = 0
    seeds: int = 3
    """Of all runs together; the other seed of a run is the next of these."""
    limits: Limits = (None, None, None)
    speedup: float = 3.0
    """That importance tables are solved for."""
    fit: dict[str, Any] = field(default_factory=dict)
    """Of `FitSettings`, such as epochs."""

    @property
    def other_seed(self) -> int:
        """The seed whose table is used instead."""
        return (self.seed + 1) % max(self.seeds, 2)


def run_hypothesis(settings: HypothesisSettings, output: Path) -> HypothesisResult:
    """Run all comparisons with one seed and write the result, unless it is there and not stale."""
    data = study_data(settings.task, settings.limits)
    if not type_of(data.task).one_decision:
        raise InputError(
            f"the hypothesis is tested where each text has one class; {data.task.name} is {data.task.kind}"
        )
    own = {"backbone": Path(settings.backbone).name, "seed": settings.seed, "other_seed": settings.other_seed}
    recorded = {"speedup": settings.speedup, "fit": settings.fit}
    result = HypothesisResult(
        task=data.task.name,
        backbone=Path(settings.backbone).name,
        seed=settings.seed,
        comparisons=(),
        settings=recorded,
        fingerprint=sha256_of_json(own | recorded | {"data": data.fingerprint}),
        versions=versions(),
    )
    done = output / result.path
    if done.exists() and (known := read_hypothesis(done)).fingerprint == result.fingerprint:
        return known
    measured = _Measured(settings, data, output)
    comparisons = (*measured.random_tables(), *measured.learned(), *measured.importance_tables())
    result = replace(result, comparisons=comparisons, split=measured.split, equal_exits=measured.equal_exits)
    done.parent.mkdir(parents=True, exist_ok=True)
    write_json(done, asdict(result))
    return result


class _Measured:
    """The models of one seed, trained as they are asked for; stages that are done are found again."""

    def __init__(self, settings: HypothesisSettings, data: TaskData, output: Path) -> None:
        self.settings, self.data, self.output = settings, data, output
        self.fit = self._fit_of(settings.seed)
        labelled = data.test is not None and data.test.targets is not None
        self.split = "test" if labelled else "dev"
        self.examples: Examples = data.test if labelled and data.test is not None else data.dev
        self.tokenized: Tokenized = self.fit.encoder(self.examples)
        self.full_depth = full_depth_macs(self.fit, self.tokenized)
        self.equal_exits = 0.0

    def _fit_of(self, seed: int) -> Fit:
        name = f"{self.data.task.name}-{Path(self.settings.backbone).name}-seed{seed}"
        own: dict[str, Any] = {"task": self.data, "output": self.output / WORK / FOLDER / name, "quiet": True}
        own |= {"backbone": self.settings.backbone, "seed": seed}
        return Fit(FitSettings(**(own | self.settings.fit)), self.data, current_processes())

    def random_tables(self) -> Iterator[Comparison]:
        """Train with one random table; predict with it, and with another."""
        folder = METHODS["hash-rand-cons"].train(self.fit).best.folder
        same, other = (
            self._arm(name, METHODS[method].open(folder))
            for name, method in (("same table", "hash-rand-cons"), ("another table", "hash-rand-incons"))
        )
        yield compare(CONSISTENT, same, other, self.full_depth)

    def learned(self) -> Iterator[Comparison]:
        """Let texts leave where BERxiT's module is certain, thresholds chosen on dev, and shuffle their exits."""
        berxit, processes = METHODS["berxit"], self.fit.processes
        model = berxit.open(berxit.train(self.fit).best.folder).to(processes.device)
        on_dev = learned_exits(model, self.fit.dev, self.data.dev, processes)
        exits = learned_exits(model, self.tokenized, self.examples, processes)
        dev_depth = full_depth_macs(self.fit, self.fit.dev)
        for speedup in SPEEDUPS:
            learned, shuffled = exits.at(on_dev.nearest(speedup, dev_depth))
            yield compare(LEARNED.format(speedup=speedup), learned, shuffled, self.full_depth)

    def importance_tables(self) -> Iterator[Comparison]:
        """Train with the seed's own table and with another seed's; predict with what was trained, and swapped."""
        fit = self.fit.with_settings(speedup=self.settings.speedup, min_exit=0, hash="importance")
        dense = fit.dense()
        own = fit.hashed("importance", dense, fit.folder / WORK / "own-table")
        other_fit = self._fit_of(self.settings.other_seed)
        other_fit = other_fit.with_settings(speedup=self.settings.speedup, min_exit=0, hash="importance")
        folder = other_fit.folder / WORK / "own-table"
        other = other_fit.converted("importance", other_fit.dense(), folder).table
        other_table = fit.with_settings(speedup=None, min_exit=None, table=folder / "table")
        refitted = other_table.hashed("table", dense, fit.folder / WORK / "other-table")
        assert own.table is not None  # it was made of one
        self.equal_exits = equal_exits(own.table, other, self.tokenized)
        consistent = self._arm("own table", load(own.folder))
        yield compare(REFITTED, consistent, self._arm("refitted table", load(refitted.folder)), self.full_depth)
        model = load(own.folder)
        model.install_tables(other.resized(len(own.table.exit_layers)), None)
        yield compare(SWAPPED, consistent, self._arm("swapped table", model), self.full_depth)

    def _arm(self, name: str, model: Any) -> Arm:
        found = HashExits().predict(model.to(self.fit.processes.device), self.tokenized, self.fit.processes)
        executed = float(sum(found.costs.executed)) / len(self.tokenized)
        return Arm(name, right_of(found.logits, self.examples), executed)


def equal_exits(one: ExitTable, other: ExitTable, tokenized: Tokenized) -> float:
    """Return the share of tokens that exit at the same layer in two tables."""
    ids = [token for row in tokenized.ids for token in row.tolist()]
    same = one.exit_layers[ids] == other.exit_layers[ids]
    return float(same.float().mean())
