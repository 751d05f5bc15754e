"""Tables for a measured speed-up: time follows operations in whatever way, and the table is found."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fitting_data import make_data
from transformers import AutoModelForSequenceClassification

from hashee import ExitTable, TableError, fit
from hashee.cost import rounds
from hashee.cost.rounds import alternate
from hashee.data import Kind
from hashee.errors import ImpossibleSpeedup
from hashee.hf.model import HashedModel
from hashee.training import clocked, tables
from hashee.training.clocked import CLOSE, TRIES, Clock, table_for_time
from small_tokenizer import make_tokenizer

LAYERS = 6
HIGHEST = 8.0


class Workshop:
    """Makes tables that know their counted speed-up, and times them by a law."""

    def __init__(self, law: Callable[[float], float], lowest: float = 1.05) -> None:
        self.law, self.lowest = law, lowest
        self.timed: list[float] = []

    def build(self, counted: float) -> ExitTable:
        if not self.lowest <= counted <= HIGHEST:
            raise ImpossibleSpeedup(f"{counted:g}x cannot be had", self.lowest, HIGHEST)
        return ExitTable([LAYERS] * 5, LAYERS, "frequency", {"speedup": counted})

    def measured_speedup(self, table: ExitTable) -> float:
        self.timed.append(table.parameters["speedup"])
        return self.law(self.timed[-1])

    def table(self, asked: float) -> ExitTable:
        return table_for_time(asked, self.build, self.measured_speedup)


@pytest.mark.parametrize("asked", [1.5, 3.0, 4.5])
@pytest.mark.parametrize(
    "law",
    [
        pytest.param(lambda counted: counted, id="time is operations"),
        pytest.param(lambda counted: counted**0.8, id="few operations are inefficient"),
        pytest.param(lambda counted: 1.3 * counted**0.9, id="no padding"),
        pytest.param(lambda counted: 1 / (0.1 + 0.9 / counted), id="a part that no exit saves"),
        pytest.param(lambda counted: 0.8 * counted, id="slower than counted"),
    ],
)
def test_finds_the_table_that_runs_as_fast_as_asked(asked: float, law: Callable[[float], float]) -> None:
    workshop = Workshop(law)
    table = workshop.table(asked)
    assert law(table.parameters["speedup"]) == pytest.approx(asked, rel=CLOSE)
    assert table.parameters["clock"] == {"asked": asked, "measured": law(table.parameters["speedup"])}
    assert len(workshop.timed) <= TRIES


def test_goes_near_the_end_of_the_scale_where_it_must() -> None:
    workshop = Workshop(lambda counted: 0.6 * counted)
    assert workshop.table(4.6).parameters["speedup"] == pytest.approx(4.6 / 0.6, rel=0.03)


def test_a_speedup_that_nothing_reaches_is_refused_with_what_was_reached() -> None:
    with pytest.raises(TableError, match=r"of 6x cannot be had here: 7.99x fewer operations ran 2.83x as fast"):
        Workshop(lambda counted: counted**0.5).table(6.0)


def test_where_no_table_can_be_made_at_all_that_is_said() -> None:
    with pytest.raises(ImpossibleSpeedup, match="3x cannot be had"):
        Workshop(lambda counted: counted, lowest=HIGHEST).table(3.0)


def test_never_slower_than_the_engine_without_exits() -> None:
    workshop = Workshop(lambda counted: 1.5 * counted)
    assert workshop.table(1.2).parameters["clock"]["measured"] >= 1.2


def test_the_nearest_is_kept_where_the_clock_wavers() -> None:
    noise = iter([1.3, 0.8, 1.2, 0.85, 1.25, 0.9, 1.1, 0.95])
    workshop = Workshop(lambda counted: counted * next(noise))
    table = workshop.table(3.0)
    assert abs(table.parameters["clock"]["measured"] / 3.0 - 1) < 0.1


def test_runs_take_turns_and_the_first_comes_last_next_time() -> None:
    order: list[str] = []
    seconds = alternate([lambda: order.append("a"), lambda: (order.append("b"), time.sleep(0.01))], 3)
    assert order == list("abbaab")
    assert [len(each) for each in seconds] == [3, 3]
    assert min(seconds[1]) >= 0.01


class Machine:
    """A processor that takes a given time for a text, and a clock that shows it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, dense: float, with_exits: float = 1.0) -> None:
        self.now, self.stalls = 0.0, [0.0]
        self.seconds = {False: dense, True: with_exits}
        monkeypatch.setattr(rounds.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(clocked, "predict", self.run_dense)
        monkeypatch.setattr(HashedModel, "predict", self.run_with_exits)

    def run(self, texts: Any, with_exits: bool) -> list[Any]:
        self.now += len(texts) * self.seconds[with_exits] + (self.stalls.pop() if self.stalls else 0.0)
        return []

    def run_dense(self, scorer: Any, texts: Any, *arguments: Any, **options: Any) -> list[Any]:
        return self.run(texts, with_exits=False)

    def run_with_exits(self, texts: Any, **options: Any) -> list[Any]:
        return self.run(texts, with_exits=True)


@pytest.mark.parametrize("milliseconds", [1.2, 2, 5, 30])
def test_a_round_keeps_the_dense_model_busy_for_two_seconds(
    milliseconds: float, backbone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(monkeypatch, dense=milliseconds / 1000)
    model: Any = AutoModelForSequenceClassification.from_pretrained(backbone)
    clock = Clock.on(["the film"] * 5000, model, model, make_tokenizer())
    began = machine.now
    clock._run_dense()
    assert machine.now - began == pytest.approx(2.0, abs=milliseconds / 1000)


@pytest.mark.parametrize(("milliseconds", "texts"), [(0.01, 2000), (140, 64)])
def test_a_round_has_neither_too_many_texts_nor_too_few(
    milliseconds: float, texts: int, backbone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Machine(monkeypatch, dense=milliseconds / 1000)
    model: Any = AutoModelForSequenceClassification.from_pretrained(backbone)
    assert len(Clock.on(["the film"] * 5000, model, model, make_tokenizer()).texts) == texts


def test_one_stall_does_not_change_the_speedup(backbone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, dense=0.006, with_exits=0.002)
    model: Any = AutoModelForSequenceClassification.from_pretrained(backbone)
    tokenizer = make_tokenizer()
    clock = Clock.on(["the film"] * 5000, model, model, tokenizer)
    # Of the twelve runs that follow, warm-up included, the fifth takes a minute longer.
    machine.stalls = [0.0] * 5 + [60.0] + [0.0] * 4
    assert clock.speedup(ExitTable.at_random(tokenizer, 3, num_buckets=1)) == pytest.approx(3.0)
    assert not machine.stalls, "the stall was met"


def test_a_real_clock_leaves_the_dense_model_as_it_is(backbone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocked, "_SECONDS_OF_ROUND", 0.05)
    model: Any = AutoModelForSequenceClassification.from_pretrained(backbone)
    tokenizer = make_tokenizer()
    clock = Clock.on(["the film is a story"] * 5000, model, model, tokenizer)
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert clock.speedup(ExitTable.at_random(tokenizer, 3, num_buckets=1, min_exit=0)) > 0
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())
    assert not isinstance(model, HashedModel)


def law_of_fits(table: ExitTable) -> float:
    """Time as it would be if it were the mean number of layers that a token stays, with a part that stays."""
    exits = table.exit_layers[5:].double().mean()
    return float(1 / (0.05 + 0.5 * exits / table.num_layers))


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocked, "_SECONDS_OF_ROUND", 0.01)


@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize(("hash", "kind"), [("frequency", Kind.TAGS), ("importance", Kind.CLASSES)])
def test_a_fit_by_time(hash: str, kind: Kind, backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Clock, "speedup", lambda clock, table: law_of_fits(table))
    options: dict[str, Any] = {"backbone": str(backbone), "hash": hash, "epochs": 1, "quiet": True}
    run = fit(task=make_data(kind), output=tmp_path / "out", speedup=1.8, speedup_by="time", **options).run
    clock = run["table"]["parameters"]["clock"]
    assert clock["asked"] == 1.8
    assert clock["measured"] == pytest.approx(1.8, rel=0.2)  # 21 types move in leaps
    assert run["table"]["parameters"]["speedup"] != 1.8


@pytest.mark.usefixtures("_quick")
def test_an_impossible_time_is_refused_before_anything_is_trained(
    backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Clock, "speedup", lambda clock, table: 4.2)
    with pytest.raises(TableError, match=r"of 30x cannot be had here: at the most it is 4\.2x"):
        fit(task=make_data(), backbone=str(backbone), output=tmp_path, speedup=30, speedup_by="time", quiet=True)
    assert not (tmp_path / "dense" / "model.safetensors").exists()


@pytest.mark.usefixtures("_quick")
def test_fewer_layers_are_timed_against_the_whole_backbone(
    backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    depths: list[tuple[int, int]] = []

    def speedup(clock: Clock, table: ExitTable) -> float:
        depths.append((clock.dense.config.num_hidden_layers, clock.start.config.num_hidden_layers))
        return 2.0

    monkeypatch.setattr(tables.Clock, "speedup", speedup)
    options: dict[str, Any] = {"backbone": str(backbone), "depth": 2, "hash": "frequency", "epochs": 1, "quiet": True}
    fit(task=make_data(), output=tmp_path / "out", speedup=2, speedup_by="time", **options)
    assert set(depths) == {(3, 2)}
