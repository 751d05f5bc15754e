"""Search over the paper's grid of hyper-parameters; a resumed search reuses finished trials and goes on within one."""

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from hashee.files import sha256_of_json
from hashee.packages import require
from hashee.training.stage import drop_weights
from hashee.training.stages import WORK, Candidate, Choice, Dense, Fit

GRID: dict[str, tuple[float, ...]] = {
    "batch_size": (16, 32),
    "learning_rate": (2e-5, 3e-5, 5e-5),
    "epochs": (3.0, 4.0, 5.0),
    "warmup_ratio": (0.1, 0.01),
    "weight_decay": (0.1, 0.01),
}
"""From the paper's appendix."""
DATABASE = "search.db"

GridPoint = dict[str, Any]
"""A value for each hyper-parameter of the grid."""


def search_grid(fit: Fit, dense: Dense | None) -> Choice:
    """Fit hashed models at points of the grid and keep the best on dev.

    The dense model is the same for all of them, fitted with the recipe as it is.
    """
    grid = grid_of(fit)
    study = fit.processes.main_only(lambda: _Trials(fit.folder / DATABASE, grid)) if fit.processes.is_main else None
    best: tuple[Fit, Candidate] | None = None
    trials = []
    for point in points_of(grid, fit.settings.search or "grid", fit.settings.seed):
        if study is not None:
            study.begin(point)
        varied = fit.with_recipe(replace(fit.recipe, **{name: point[name] for name in GRID if name in point}))
        folder = fit.folder / WORK / "search" / sha256_of_json(point)[:16]
        candidate = varied.hashed(point["hash"], dense, folder)
        if study is not None:
            study.end(point, candidate.score)
        trials.append({"point": point, "dev": candidate.record.dev})
        loser = candidate
        if best is None or candidate.score > best[1].score:
            loser = candidate if best is None else best[1]
            best = (varied, candidate)
        if loser is not best[1] and fit.processes.is_main and not fit.settings.keep_checkpoints:
            drop_weights(loser.folder)
    assert best is not None  # a grid has at least one point
    found = {"grid": {name: list(values) for name, values in grid.items()}, "trials": trials}
    return Choice(best[0], [best[1]], found)


def grid_of(fit: Fit) -> dict[str, tuple[Any, ...]]:
    """Return what is searched: the paper's grid without what the settings fix, and the hashes."""
    free = {name: values for name, values in GRID.items() if getattr(fit.settings, name) is None}
    return free | {"hash": fit.settings.hashes}


def points_of(grid: dict[str, tuple[Any, ...]], search: str, seed: int) -> list[GridPoint]:
    """Return all points of a grid in a random order, or the first of them. search: `grid` or a number."""
    points = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    order = np.random.default_rng(seed).permutation(len(points))
    return [points[index] for index in (order if search == "grid" else order[: int(search)])]


class _Trials:
    """The trials in a SQLite file as optuna keeps them, so that its dashboard and plots can read them."""

    def __init__(self, path: Path, grid: dict[str, tuple[Any, ...]]) -> None:
        optuna = require_optuna()
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        path.parent.mkdir(parents=True, exist_ok=True)
        self.states = optuna.trial.TrialState
        self.grid = {name: optuna.distributions.CategoricalDistribution(values) for name, values in grid.items()}
        self.study = optuna.create_study(
            storage=f"sqlite:///{path}", study_name="hashee", direction="maximize", load_if_exists=True
        )
        self.numbers: dict[str, int] = {}
        for trial in self.study.get_trials(states=(self.states.RUNNING, self.states.WAITING)):
            # It was interrupted; the same point is tried again and goes on from its checkpoints.
            self.study.tell(trial.number, state=self.states.FAIL)

    def begin(self, point: GridPoint) -> None:
        """Record that a trial of a point begins, unless it is complete."""
        if any(trial.params == point for trial in self.study.get_trials(states=(self.states.COMPLETE,))):
            return
        self.study.enqueue_trial(point)
        self.numbers[sha256_of_json(point)] = self.study.ask(self.grid).number

    def end(self, point: GridPoint, score: float) -> None:
        """Record the score of a point."""
        number = self.numbers.pop(sha256_of_json(point), None)
        if number is not None:
            self.study.tell(number, score)


def require_optuna() -> Any:
    """Return the optuna package, or say how to get it."""
    return require("optuna", "train", "--search")
