"""Several seeds, and searches over the paper's grid."""

import json
import statistics
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from fitting_data import make_data
from safetensors.torch import load_file

from hashee.errors import HasheeError
from hashee.training import fit
from hashee.training.search import GRID, points_of

OPTIONS: dict[str, Any] = {"hash": "frequency", "warm_start": False, "epochs": 1, "quiet": True}


def test_seeds_give_mean_and_deviation_and_the_best_on_dev(backbone: Path, tmp_path: Path) -> None:
    output, settings = (
        tmp_path / "out",
        OPTIONS | {"backbone": str(backbone), "task": make_data(), "seeds": 3, "seed": 4},
    )
    run = fit(output=output, **settings).run
    assert [each["seed"] for each in run["seeds"]] == [4, 5, 6]
    tests = [each["metrics"]["test"]["score"] for each in run["seeds"]]
    assert run["summary"]["test"]["score"] == {"mean": statistics.fmean(tests), "std": statistics.stdev(tests)}
    assert len({json.dumps(each["metrics"]) for each in run["seeds"]}) > 1, "seeds make a difference"
    best = max(run["seeds"], key=lambda each: each["metrics"]["dev"]["score"])
    assert run["best_seed"] == best["seed"]
    assert run["metrics"] == best["metrics"]
    kept = load_file(output / "model.safetensors")
    chosen = load_file(output / f"seed-{best['seed']}" / "model.safetensors")
    assert all((kept[name] == chosen[name]).all() for name in kept)
    # Of a run that was interrupted, what is finished is reused.
    (output / "run.json").unlink()
    (output / "seed-6" / "run.json").unlink()
    before = (output / "seed-4" / "run.json").stat().st_mtime_ns
    again = fit(output=output, resume=True, **settings).run
    assert again["summary"] == run["summary"]
    assert (output / "seed-4" / "run.json").stat().st_mtime_ns == before


def test_the_grid_is_the_paper_s() -> None:
    points = points_of(GRID, "grid", seed=0)
    assert len(points) == 72
    assert {tuple(point.values()) for point in points} == set(product(*GRID.values()))
    some = points_of(GRID, "10", seed=0)
    assert some == points[:10]
    assert points_of(GRID, "10", seed=1) != some


def test_a_search_keeps_the_best_point_and_goes_on_where_it_was(backbone: Path, tmp_path: Path) -> None:
    optuna = pytest.importorskip("optuna")
    output = tmp_path / "out"
    settings = OPTIONS | {"backbone": str(backbone), "task": make_data(), "search": "4", "warmup_ratio": 0.1}
    run = fit(output=output, keep_checkpoints=True, **settings).run
    trials = run["search"]["trials"]
    assert len(trials) == 4
    assert set(trials[0]["point"]) == {"batch_size", "learning_rate", "weight_decay", "hash"}, (
        "what is fixed is not varied"
    )
    best = max(trials, key=lambda trial: trial["dev"]["score"])
    assert run["metrics"]["dev"] == best["dev"]
    assert run["recipe"]["batch_size"] == best["point"]["batch_size"]
    study = optuna.load_study(study_name="hashee", storage=f"sqlite:///{output / 'search.db'}")
    assert [trial.params for trial in study.trials] == [trial["point"] for trial in trials]
    assert study.best_value == best["dev"]["score"]
    # As if it had been killed during the last trial.
    (output / "run.json").unlink()
    folders = sorted((output / "work" / "search").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    (folders[-1] / "stage.json").unlink()
    before = {path: (path / "stage.json").stat().st_mtime_ns for path in folders[:-1]}
    again = fit(output=output, resume=True, keep_checkpoints=True, **settings).run
    assert again["search"] == run["search"]
    assert again["metrics"] == run["metrics"]
    assert all((path / "stage.json").stat().st_mtime_ns == then for path, then in before.items())


def test_a_search_without_optuna_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    with pytest.raises(HasheeError, match=r'pip install "hashee\[train\]"'):
        fit(task="sst2", output=tmp_path / "out", search=3)
