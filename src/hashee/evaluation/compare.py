"""`hashee.tradeoff`: models at several costs, fitted alike, as points of quality against cost."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from hashee.cost.threads import torch_threads
from hashee.data.run_record import DENSE_EQUAL, RUN, DenseRecord, RunRecord, dev_score
from hashee.data.task import TaskData
from hashee.errors import InputError, TableError, UnsupportedModel
from hashee.evaluation.figure import draw_tradeoff
from hashee.evaluation.points import DENSE, STATIC, TradeoffPoint, with_front, write_points
from hashee.evaluation.settings import OWN, SPEEDUPS, TABLES
from hashee.files import read_json, write_json
from hashee.hf.pretrained import quiet_transformers
from hashee.packages import require
from hashee.tables.table import ExitTable
from hashee.training import FitSettings, fit
from hashee.training.entry import complete_settings
from hashee.training.settings import HASHES

FIGURE, POINTS, BEGUN, DENSE_RECORD = "tradeoff.png", "tradeoff.json", "begun.json", "dense-equal.json"


@dataclass(frozen=True)
class Grid:
    """Which models are compared."""

    speedups: tuple[float, ...] = SPEEDUPS
    hashes: tuple[str, ...] = TABLES
    depths: tuple[int, ...] | None = None
    """Layers of the shallower models without exits; None: every depth below the backbone's."""

    def __post_init__(self) -> None:
        known = [name for name in HASHES if name != "auto"]
        for name in self.hashes:
            if name not in known:
                raise InputError(f"unknown hash {name!r}; choose from {', '.join(known)}")
        for speedup in self.speedups:
            if not 1 <= speedup < float("inf"):
                raise InputError(f"speed-up {speedup:g} cannot be asked for; give numbers of at least 1")
        if not (self.hashes and self.speedups) and self.depths == ():
            raise InputError("there is nothing to compare; give speed-ups and hashes, or depths")

    def checked(self, layers: int) -> "Grid":
        """Return the grid for a backbone of so many layers."""
        depths = tuple(range(1, layers)) if self.depths is None else self.depths
        for depth in depths:
            if not 1 <= depth < layers:
                raise InputError(f"depth {depth} is not from 1 to {layers - 1}; the backbone has {layers} layers")
        return replace(self, depths=depths)


@dataclass(frozen=True)
class PlannedFit:
    """A point that is to be fitted, for each seed alike."""

    name: str
    hash: str
    layers: int
    asked: float | None
    changes: dict[str, Any]
    """What its settings have of their own."""


def tradeoff(
    *,
    speedups: Sequence[float] = SPEEDUPS,
    hash: str | Sequence[str] = TABLES,
    depths: Sequence[int] | None = None,
    **fields: Any,
) -> list[TradeoffPoint]:
    """Fit models at several costs, and write tradeoff.json and tradeoff.png to the output folder.

    speedups, hash: a model for each of both. depths: layers of the static models without exits; by default all below
    the backbone's. fields: those of `FitSettings` (task, output, backbone, seeds, ...), the same for every model. What
    was finished in the output folder before is reused.
    """
    for name in OWN[1:]:
        if name in fields:
            raise InputError(f"{name} is what a trade-off varies; leave it out, and see speedups, hash and depths")
    require("accelerate", "train", "fitting")
    from hashee.training.backbone import open_backbone  # noqa: PLC0415  # its packages are an extra

    hashes = (hash,) if isinstance(hash, str) else tuple(hash)
    grid = Grid(tuple(map(float, speedups)), hashes, None if depths is None else tuple(depths))
    settings = complete_settings(None, fields)
    data = settings.load_data()
    # Models with exits have twice the epochs in two stages, the others at once.
    epochs = settings.recipe(data.task.recipe).epochs
    with quiet_transformers():
        backbone = open_backbone(settings.backbone, data.task, None)
    planned = planned_fits(grid.checked(backbone.layers), backbone.layers, settings.output / "tables", epochs)
    with torch_threads(settings.threads):
        return _Fits(settings, data, backbone, 2 * epochs).run(planned)


def planned_fits(grid: Grid, layers: int, tables: Path, epochs: float) -> list[PlannedFit]:
    """List the models to fit, those with exits first.

    They start from a dense model of as many epochs; those without exits are fitted in twice as many.
    """
    planned = [
        PlannedFit(f"{name}-{speedup:g}x", name, layers, speedup, {"hash": name, "speedup": speedup, "epochs": epochs})
        for name in grid.hashes
        for speedup in sorted(grid.speedups)
    ]
    at_once = {"warm_start": False, "epochs": 2 * epochs}
    return planned + [
        PlannedFit(
            f"static-{depth}", STATIC, depth, None, at_once | {"depth": depth, "table": tables / f"never-{depth}"}
        )
        for depth in sorted(grid.depths or ())
    ]


class _Fits:
    """The fits of one trade-off; each seed has its own dense models: one to start from, one to compare with."""

    def __init__(self, settings: FitSettings, data: TaskData, backbone: Any, passes: float) -> None:
        from hashee.training.processes import current_processes  # noqa: PLC0415  # its packages are an extra

        self.settings = settings
        self.data = data
        self.backbone = backbone
        self.passes = passes
        # By seed, the dense model that had as many passes as every point.
        self.dense: dict[int, DenseRecord] = {}
        self.processes = current_processes()
        self.folder = settings.output
        self.seeds = range(settings.seed, settings.seed + settings.seeds)

    def run(self, planned: Sequence[PlannedFit]) -> list[TradeoffPoint]:
        """Fit what is not there yet, and write points and figure."""
        self.processes.main_only(lambda: self._begin(planned))
        is_start = any(each.hash != STATIC for each in planned) or bool(self.settings.distillation)
        for seed in self.seeds:
            self._fit_dense(seed, is_start)
        points: list[TradeoffPoint] = []
        for number, planned_fit in enumerate(planned, start=1):
            self._say(f"{number} of {len(planned)}: {planned_fit.name}")
            try:
                runs = list(self._runs(planned_fit))
            except (TableError, UnsupportedModel) as error:
                # No table reaches the speed-up, or the family cannot be cut: the other points are still of use.
                self._say(f"skipped {planned_fit.name}: {error}")
                points.append(
                    TradeoffPoint(
                        planned_fit.name, planned_fit.hash, planned_fit.layers, planned_fit.asked, skipped=str(error)
                    )
                )
                continue
            points.append(self._point(planned_fit, runs))
            self.processes.main_only(lambda: write_points(with_front(points), self.folder / POINTS))
        if all(point.skipped is not None for point in points):
            raise InputError(f"none of the models could be fitted; the first: {points[0].skipped}")
        points = with_front([self._dense_point(points), *points])
        self.processes.main_only(lambda: self._write(points))
        return points

    def _begin(self, planned: Sequence[PlannedFit]) -> None:
        """Make the tables without exits; refuse a folder whose points were fitted otherwise."""
        shared = replace(self.settings, seeds=1)
        begun = read_json(self.folder / BEGUN)
        if begun is not None:
            differences = shared.differences(begun["settings"])
            if differences:
                raise InputError(f"{self.folder} was begun otherwise: {differences[0]}; name another output")
            if begun["fingerprint"] != self.data.fingerprint:
                raise InputError(f"the data have changed since {self.folder} was begun; name another output")
        write_json(self.folder / BEGUN, {"settings": shared.to_dict(), "fingerprint": self.data.fingerprint})
        for planned_fit in planned:
            if planned_fit.hash == STATIC:
                ExitTable.never(self.backbone.tokenizer, planned_fit.layers).save(planned_fit.changes["table"])

    def _fit_dense(self, seed: int, is_start: bool) -> None:
        """Fit the dense models of a seed, or find them: one that had as many passes as every point, one to start from.

        is_start: whether any point starts from a dense model or learns from it.
        """
        from hashee.training.outcome import dense_record  # noqa: PLC0415
        from hashee.training.stages import Fit  # noqa: PLC0415

        folder = self._seed_folder(seed)
        fit = Fit(replace(self.settings, output=folder, seed=seed, seeds=1), self.data, self.processes)
        self._say(f"dense model, seed {seed}")
        with quiet_transformers():
            if is_start:
                fit.dense()
            equal = fit.dense_equal(self.passes)
            known = self.processes.main_only(lambda: _recorded(folder / DENSE_RECORD, equal.record))
            self.dense[seed] = known or dense_record(fit, equal)
        if known is None:
            self.processes.main_only(lambda: write_json(folder / DENSE_RECORD, self.dense[seed].to_dict()))

    def _runs(self, planned_fit: PlannedFit) -> Iterator[RunRecord]:
        for seed in self.seeds:
            folder = self._seed_folder(seed)
            output = folder / planned_fit.name
            own = {"output": output, "seed": seed, "seeds": 1, "resume": output.exists()}
            if planned_fit.changes.get("warm_start", True) or self.settings.distillation:
                own["dense"] = folder / DENSE
            run = fit(replace(self.settings, **(planned_fit.changes | own))).run
            yield self._compared(run, output, seed)

    def _compared(self, run: RunRecord, folder: Path, seed: int) -> RunRecord:
        """Record the dense model of as many passes in a run, for `evaluate` to compare with."""
        if run.dense_equal == self.dense[seed]:
            return run
        compared = replace(run, dense_equal=self.dense[seed])
        self.processes.main_only(lambda: write_json(folder / RUN, compared.to_dict()))
        return compared

    def _seed_folder(self, seed: int) -> Path:
        return self.folder / f"seed-{seed}"

    def _point(self, planned_fit: PlannedFit, runs: Sequence[RunRecord]) -> TradeoffPoint:
        best = max(range(len(runs)), key=lambda number: dev_score(runs[number].metrics))
        return TradeoffPoint(
            name=planned_fit.name,
            hash=planned_fit.hash,
            layers=planned_fit.layers,
            asked=planned_fit.asked,
            speedup=fmean(run.macs.speedup for run in runs),
            macs=fmean(run.macs.executed_per_text for run in runs),
            seconds=sum(run.seconds.total for run in runs),
            folder=str(self._seed_folder(self.seeds[best]) / planned_fit.name),
            passes=runs[best].passes,
            **_quality(runs),
        )

    def _dense_point(self, points: Sequence[TradeoffPoint]) -> TradeoffPoint:
        dense = [self.dense[seed] for seed in self.seeds]
        fitted = next(point for point in points if point.macs is not None and point.speedup is not None)
        best = max(range(len(dense)), key=lambda number: dev_score(dense[number].metrics))
        return TradeoffPoint(
            name=DENSE,
            hash=DENSE,
            layers=self.backbone.layers,
            speedup=1.0,
            macs=(fitted.macs or 0.0) * (fitted.speedup or 0.0),
            seconds=sum(record.training.seconds for record in dense if record.training is not None),
            folder=str(self._seed_folder(self.seeds[best]) / DENSE_EQUAL),
            passes=dense[best].passes,
            **_quality(dense),
        )

    def _write(self, points: Sequence[TradeoffPoint]) -> None:
        write_points(points, self.folder / POINTS)
        task = self.data.task
        draw_tradeoff(points, self.folder / FIGURE, title=task.name, metric=task.metric.replace("_", " "))

    def _say(self, line: str) -> None:
        if self.processes.is_main and not self.settings.quiet:
            print(line, file=sys.stderr, flush=True)


def _recorded(path: Path, trained: Any) -> DenseRecord | None:
    """Return the record of a dense model if it was evaluated after this very training."""
    known = DenseRecord.from_dict(read_json(path) or {})
    same = known.training is not None and known.training.fingerprint == trained.fingerprint
    return known if same else None


def _quality(runs: Sequence[RunRecord | DenseRecord]) -> dict[str, Any]:
    """Return mean and deviation of the scores on dev and test, and how many there are."""
    found: dict[str, Any] = {"seeds": len(runs)}
    for split in ("dev", "test"):
        metrics = [run.metrics[split] for run in runs]
        scores = [each["score"] for each in metrics if each is not None]
        if not scores:
            continue
        found |= {split: fmean(scores), f"{split}_std": stdev(scores) if len(scores) > 1 else 0.0}
    return found
