"""Times of methods: everybody runs the same batches, in turns, at the operating point that was asked for."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from fitting_data import RECIPE, make_data
from made_up_results import point, result
from torch import Tensor

from hashee.cli import app
from hashee.cli.study import TIMED as ASKED
from hashee.data import TaskData
from hashee.errors import InputError
from hashee.study.clocking import (
    DENSE,
    TRANSFORMERS,
    ClockSettings,
    Entry,
    Kept,
    clock,
    kept_point,
    kept_points,
    kept_runs,
    opened,
    run_batches,
    timed,
)
from hashee.study.clocks import Clocks, read_clocks
from hashee.study.methods import METHODS
from hashee.study.options import ReportOptions
from hashee.study.results import RunResult, read_results
from hashee.study.run import Experiment, run_experiment
from hashee.study.tables import TABLES
from hashee.training.processes import current_processes

TIMED = (TRANSFORMERS, DENSE, *ASKED)
OTHERS = ("head-prune", "cascadebert")
"""Methods that are not timed unless they are asked for."""


def make_task() -> TaskData:
    # At the rate of other tests, FastBERT's classifiers attend so sharply that rounding shows in their logits.
    data = make_data(recipe=replace(RECIPE, epochs=1.0, learning_rate=1e-3))
    return replace(data, task=replace(data.task, name="snli"))


def run(method: str, backbone: Path, output: Path, keep_models: bool = True) -> RunResult:
    experiment = Experiment(method, make_task(), str(backbone), settings={"speedup": 1.5})
    return run_experiment(experiment, output, keep_models)


@pytest.fixture(scope="module")
def results(backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the result and the models of every method."""
    folder = tmp_path_factory.mktemp("results")
    for method in (*TIMED, *OTHERS):
        if method != TRANSFORMERS:
            run(method, backbone, folder)
    return folder


@pytest.fixture(autouse=True)
def _own_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hashee.study.clocking.study_data", lambda task: make_task())


def settings_for(results: Path, **changes: Any) -> ClockSettings:
    options: dict[str, Any] = {
        "methods": ASKED,
        "tasks": ("SNLI",),
        "backbone": "tiny",
        "speedups": (1.5,),
        "batch_sizes": (16, 1),
    }
    return ClockSettings(results, **(options | {"texts": 24, "rounds": 2} | changes))


def nothing(*said: Any) -> None:
    """Report nothing."""


def test_every_method_has_a_row_for_every_batch_size(results: Path, tmp_path: Path) -> None:
    settings = settings_for(results)
    begun: list[tuple[int, int]] = []
    found = list(clock(settings, lambda what, done, total: begun.append((done, total)), pytest.fail))
    assert [len(clocks.rows) for clocks in found] == [len(TIMED), 2 * len(TIMED)], "what was measured is there at once"
    rows = found[-1].rows
    assert [(row.method, row.batch) for row in rows] == [(method, size) for size in (1, 16) for method in TIMED]
    assert {row.texts for row in rows} == {"SNLI"} and {len(row.seconds_per_text) for row in rows} == {2}
    steps = 2 * 3 * len(TIMED)
    assert begun[1:] == [(done, steps) for done in range(steps)]
    found[-1].write(tmp_path / "clocks.json")
    assert read_clocks(tmp_path / "clocks.json") == found[-1]
    assert {"cpu", "instruction_sets", "threads", "versions"} <= set(found[-1].hardware)
    assert found[-1].protocol["lengths"]["SNLI"]["texts"] == 24


def test_costs_are_counted_on_the_texts_that_run(results: Path) -> None:
    rows = {(row.method, row.batch): row for row in list(clock(settings_for(results), nothing, pytest.fail))[-1].rows}
    assert rows[TRANSFORMERS, 1].speedup == 1.0, "one text has no padding"
    padded = rows[TRANSFORMERS, 16].speedup
    assert padded is not None and 0.5 < padded < 1.0, "padding is computed"
    assert rows[DENSE, 1].speedup == rows[DENSE, 16].speedup
    assert rows[DENSE, 1].speedup is not None and rows[DENSE, 1].speedup > 1.0, "rows that no head reads are left out"
    assert rows["hash-importance", 1].speedup == pytest.approx(1.5, abs=0.3)
    assert rows[TRANSFORMERS, 1].quality == rows[DENSE, 1].quality


@pytest.mark.parametrize("method", [*TIMED, *OTHERS])
def test_what_is_timed_is_what_is_predicted(method: str, results: Path) -> None:
    settings = settings_for(results, methods=(method,))
    texts, entries = opened(settings, "snli", kept_points(settings, list(read_results(results)), "snli", pytest.fail))
    entry = next(entry for entry in entries if entry.kept.method == method)
    batches = texts.batches(5)
    logits = torch.cat(run_batches(entry.run, [texts.tokenized.inputs(rows) for rows in batches]))
    order = [index for rows in batches for index in rows]
    # transformers runs the weights of the dense model.
    predicting = METHODS[DENSE if method == TRANSFORMERS else method]
    model = predicting.open(entry.kept.folder)
    expected = predicting.predict(model, texts.tokenized, current_processes(), entry.kept.point.knob).logits
    np.testing.assert_allclose(logits.numpy(), np.stack(expected)[order], atol=1e-5)


def test_all_methods_run_the_same_batches_in_turns(results: Path) -> None:
    settings = settings_for(results, methods=())
    texts, entries = opened(settings, "snli", kept_points(settings, list(read_results(results)), "snli", pytest.fail))
    seen: list[tuple[str, Tensor]] = []

    def recorded(name: str) -> Entry:
        def run(inputs: Mapping[str, Tensor]) -> Tensor:
            seen.append((name, inputs["attention_mask"].sum(dim=1)))
            return inputs["input_ids"]

        return replace(entries[0], kept=replace(entries[0].kept, method=name), run=run)

    begun: list[str] = []
    timed(texts, [recorded("a"), recorded("b")], 10, 2, begun.append)
    assert [what.split()[-1] for what in begun] == list("ab" + "ab" + "ba"), "after the warm-up, turns are reversed"
    assert [name for name, _ in seen] == list("aaabbb" + "aaabbb" + "bbbaaa")
    lengths = sorted(texts.tokenized.lengths.tolist())
    for start in range(0, len(seen), 3):
        assert [len(batch) for _, batch in seen[start : start + 3]] == [10, 10, 4]
        assert torch.cat([batch for _, batch in seen[start : start + 3]]).tolist() == lengths


def made_up(folder: Path, method: str, *speedups: float, **other: Any) -> RunResult:
    """Return a run with a folder for the model of each operating point."""
    points = [point(speedup, 1 - speedup / 100, None, knob=speedup, model=f"work/{speedup}") for speedup in speedups]
    made = result(method, *points, task="snli", backbone="tiny", **other)
    for each in points:
        (folder / made.work / each.model).mkdir(parents=True, exist_ok=True)
    return made


def test_the_operating_point_is_the_nearest_that_dev_would_choose(tmp_path: Path) -> None:
    def found(*runs: RunResult) -> Kept:
        return kept_point(settings, kept_runs(settings, runs, "pabee", "snli"), 3.0)

    settings = settings_for(tmp_path)
    runs = [
        made_up(tmp_path, "pabee", 1.0, 2.4, 3.4, 5.0),
        made_up(tmp_path, "pabee", 3.0, seed=1),
        made_up(tmp_path, "pabee", 3.0, settings={"depth": 3}),
        made_up(tmp_path, "fastbert", 3.0),
    ]
    kept = found(*runs)
    assert kept.point.speedup == 3.4 and kept.quality == kept.point.dev
    assert kept.folder == tmp_path / "work" / "snli-tiny-seed0" / "work" / "3.4"
    # A point that is slower and worse on dev than another is never chosen.
    trap = replace(runs[0], curve=(*runs[0].curve, replace(runs[0].curve[1], speedup=3.0, dev=0.1)))
    assert found(trap).point.speedup == 3.4
    asked = made_up(tmp_path, "pabee", 2.9, settings={"speedup": 2.9})
    assert found(*runs, asked).point.speedup == 2.9


def test_several_speedups_are_points_of_their_own_and_each_is_timed_once(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, methods=("pabee",), speedups=(3.0, 2.0, 3.0, 2.5))
    runs = [made_up(tmp_path, DENSE, 1.1), made_up(tmp_path, "pabee", 1.0, 2.4, 3.4)]
    found = kept_points(settings, runs, "snli", pytest.fail)
    assert [(kept.method, kept.point.speedup, kept.asked) for kept in found] == [
        (TRANSFORMERS, 1.1, (3.0, 2.0, 2.5)),
        (DENSE, 1.1, (3.0, 2.0, 2.5)),
        ("pabee", 3.4, (3.0,)),
        ("pabee", 2.4, (2.0, 2.5)),
    ]


def test_a_curve_by_the_clock_is_measured_in_one_run(results: Path, tmp_path: Path) -> None:
    speedups = ["--speedup", "1.1", "--speedup", "4"]
    path = tmp_path / "times.json"
    options = ["--task", "snli", "--method", "deebert", "--batch-size", "4", "--batch-size", "8", "--texts", "24"]
    options += ["--rounds", "2", "--backbone", "tiny", "--results", str(results), "--output", str(path)]
    ran = CliRunner().invoke(app, ["study", "clock", *options, *speedups], catch_exceptions=False)
    assert ran.exit_code == 0
    clocks = read_clocks(path)
    slow, fast = (rows for rows in clocks.points("SNLI") if rows[0].method == "deebert")
    assert [row.batch for row in fast] == [4, 8]
    assert slow[0].speedup is not None and fast[0].speedup is not None and slow[0].speedup < fast[0].speedup
    assert clocks.of("SNLI")["deebert"] == slow and clocks.asked_speedup == 1.1, "others show what was asked for first"
    # The table reads what the clock wrote and the results that it timed.
    table = TABLES["quality-at-time"](list(read_results(results)), ReportOptions(clocks=path)).to_dict()
    assert [row["method"] for row in table["rows"]] == ["dense-speedup1.5", "deebert-speedup1.5"] * 2
    assert not [note for note in table["notes"] if "newer" in note]


def test_what_has_no_models_is_one_line(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, methods=("pabee", "fastbert", "deebert"))
    dense = made_up(tmp_path, DENSE, 1.0, data={"fingerprint": "own"})
    other = made_up(tmp_path, "deebert", 2.0, data={"fingerprint": "other"})
    refused = result("fastbert", task="snli", backbone="tiny", not_applicable="it needs classes")
    lines: list[str] = []
    found = kept_points(settings, [dense, refused, other], "snli", lines.append)
    assert [kept.method for kept in found] == [TRANSFORMERS, DENSE] and found[0].folder == found[1].folder
    assert len(lines) == 3 and all("\n" not in line for line in lines)
    assert lines[0].startswith("skipped pabee on snli: there are no models") and lines[0].endswith("--keep-models`")
    assert lines[1:] == [
        "skipped fastbert on snli: it needs classes",
        "skipped deebert on snli: it was not trained on the same texts as dense, or at another length",
    ]
    (tmp_path / dense.work / "work" / "1.0").rmdir()
    with pytest.raises(InputError, match=r"no models of dense on snli .*--method dense --backbone tiny"):
        kept_points(settings, [dense], "snli", pytest.fail)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"tasks": ("wnut17",)}, "times are taken with texts of sst2, imdb, snli"),
        ({"methods": ("magic",)}, "unknown method 'magic'"),
        ({"batch_sizes": (1, 32)}, "24 texts fill no batch of 32"),
        ({"batch_sizes": (0,)}, "batch size is 0"),
        ({"batch_sizes": ()}, "batch size is 0"),
        ({"rounds": 0}, "rounds is 0"),
        ({"speedups": (2.0, 0.5)}, "speedup is 0.5"),
        ({"speedups": ()}, "speedup is 0"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=told):
        settings_for(tmp_path, **changes)


def test_models_are_made_again_if_they_are_to_be_kept(backbone: Path, tmp_path: Path) -> None:
    first = run("first-layers", backbone, tmp_path, keep_models=False)
    assert first.curve and not first.has_models(tmp_path)
    again = run("first-layers", backbone, tmp_path)
    assert again.has_models(tmp_path) and again.fingerprint == first.fingerprint
    run("pabee", backbone, tmp_path, keep_models=False)
    assert again.has_models(tmp_path), "a run that keeps nothing deletes nothing that others kept"


def test_the_command_times_writes_and_prints(results: Path, tmp_path: Path) -> None:
    path = tmp_path / "times.json"
    options = ["--task", "snli", "--method", "pabee", "--method", "berxit", "--batch-size", "4", "--texts", "8"]
    options += ["--rounds", "2", "--backbone", "tiny", "--results", str(results), "--output", str(path)]
    ran = CliRunner().invoke(app, ["study", "clock", *options], catch_exceptions=False)
    assert ran.exit_code == 0
    assert [row.method for row in read_clocks(path).rows] == [TRANSFORMERS, DENSE, "pabee"]
    assert "skipped berxit on snli" in ran.stderr and "pabee" in ran.stdout
    shown = CliRunner().invoke(app, ["study", "clock", *options, "--json"], catch_exceptions=False).stdout
    assert len(json.loads(shown)["rows"]) == 3


def test_the_machine_is_told_in_a_few_words() -> None:
    assert Clocks((), {"cpu": "EPYC", "threads": 2, "versions": {"torch": "2"}}).machine == "cpu EPYC, threads 2"
