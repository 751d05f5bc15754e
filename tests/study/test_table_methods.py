"""The defining property of each method with an exit table, and of models with fewer layers, on tiny models."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fitting_data import RECIPE, make_data
from made_up_results import result

from hashee.data.task import Kind
from hashee.errors import HasheeError, ImpossibleSpeedup
from hashee.hf.flops import costs_of
from hashee.study.methods import METHODS
from hashee.study.methods.hash_depth import Depths, depths_for
from hashee.study.run import Experiment, run_experiment
from hashee.training.hash_exits import OWN_COST
from hashee.training.lesson import Lesson
from hashee.training.method import Choice
from hashee.training.processes import current_processes
from hashee.training.settings import TAUGHT, FitSettings
from hashee.training.stages import Candidate, Fit

AT_OWN_COST = {
    "hash-frequency": "frequency",
    "hash-mi": "mutual_information",
    "hash-clustered": "clusters",
    "hash-rand-cons": "random",
    "hash-rand-incons": "random",
}
SOLVED = {
    "hash-frequency-solved": "frequency",
    "hash-importance-1": "importance",
    "hash-importance": "importance",
    "hash-depth": "importance",
}
SPEEDUP = 2.5
BEYOND_LAYER_1 = 5.0
"""A speed-up that is out of reach if every token passes layer 1."""


@pytest.fixture(scope="module")
def trained(backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Choice]:
    """Every method with a table, trained in one folder, so that all share the dense model."""
    output = tmp_path_factory.mktemp("work")
    data = make_data(recipe=replace(RECIPE, epochs=1.0))
    settings = FitSettings(task=data, output=output, backbone=str(backbone), quiet=True)
    own = Fit(settings, data, current_processes())
    solved = own.with_settings(speedup=SPEEDUP)
    return {name: METHODS[name].train(own if name in AT_OWN_COST else solved) for name in (*AT_OWN_COST, *SOLVED)}


@pytest.mark.parametrize("name", [*AT_OWN_COST, *SOLVED])
def test_every_method_has_its_table_and_the_same_passes(name: str, trained: dict[str, Choice]) -> None:
    for candidate in trained[name].candidates:
        model = METHODS[name].open(candidate.folder)
        assert candidate.passes == 2.0
        assert candidate.table is not None and candidate.table.method == (AT_OWN_COST | SOLVED)[name]
        assert list(METHODS[name].knobs(model)) == [OWN_COST if name in AT_OWN_COST else SPEEDUP]
    assert len(trained[name].candidates) == 1, "at this speed-up all depths that are tried are the whole backbone"


@pytest.mark.parametrize("name", AT_OWN_COST)
def test_tables_of_the_paper_divide_tokens_among_all_layers(name: str, trained: dict[str, Choice]) -> None:
    table = trained[name].best.table
    assert table is not None and set(table.exit_layers.tolist()) == {1, 2, 3, 4}


def test_inference_has_the_table_of_training_unless_it_is_inconsistent(trained: dict[str, Choice]) -> None:
    tables = {}
    for name in ("hash-rand-cons", "hash-rand-incons"):
        best = trained[name].best
        assert best.table is not None
        tables[name] = best.table.exit_layers, METHODS[name].open(best.folder).exit_table.exit_layers
    trained_with, used = tables["hash-rand-cons"]
    assert torch.equal(trained_with, used)
    trained_with, used = tables["hash-rand-incons"]
    assert torch.equal(trained_with, tables["hash-rand-cons"][0]), "both are trained alike"
    assert 0.5 < float((trained_with != used).float().mean()) < 0.9, "three of four tokens exit elsewhere"


def test_more_is_saved_where_tokens_may_leave_before_layer_1(trained: dict[str, Choice]) -> None:
    fit = trained["hash-importance"].fit.with_settings(speedup=BEYOND_LAYER_1)
    with pytest.raises(HasheeError, match="speed"):
        METHODS["hash-importance-1"].train(fit)
    for name in ("hash-importance", "hash-frequency-solved"):
        table = METHODS[name].train(fit).best.table
        assert table is not None and min(table.exit_layers.tolist()) == 0


@pytest.mark.parametrize("name", SOLVED)
def test_tables_are_solved_for_the_executed_speedup(name: str, trained: dict[str, Choice]) -> None:
    choice = trained[name]
    model = METHODS[name].open(choice.best.folder)
    ids = [row.tolist() for row in choice.fit.dev.ids]
    whole = costs_of(model.config, model.exit_table.never(model.config.vocab_size, 4), ids, reads_first_row=False)
    spent = costs_of(model.config, model.exit_table, ids, bool(model.hashed_encoder.reads_first_row))
    assert whole.paper.sum() / spent.executed.sum() == pytest.approx(SPEEDUP, rel=0.1)


def test_speedups_that_no_table_reaches_are_left_out(trained: dict[str, Choice]) -> None:
    fit = trained["hash-importance"].fit.with_settings(speedup=None)
    method = replace(METHODS["hash-importance-1"], speedups=(SPEEDUP, BEYOND_LAYER_1))
    (candidate,) = method.train(fit).candidates
    assert candidate.table is not None and candidate.table.parameters["speedup"] == SPEEDUP
    with pytest.raises(ImpossibleSpeedup):
        replace(method, speedups=(BEYOND_LAYER_1,)).train(fit)


def test_fewer_layers_are_tried_for_higher_speedups_over_the_whole_backbone(trained: dict[str, Choice]) -> None:
    fit = trained["hash-depth"].fit.with_settings(speedup=None)
    choice = replace(METHODS["hash-depth"], speedups=(2.0, 6.0, 8.0)).train(fit)
    names = [candidate.hash for candidate in choice.candidates]
    assert names == ["2x, 4 layers", "6x, 2 layers", "8x, 2 layers"]
    ids = [row.tolist() for row in fit.dev.ids]
    for name, candidate in zip(names, choice.candidates, strict=True):
        model, speedup = METHODS["hash-depth"].open(candidate.folder), float(name.split("x")[0])
        whole = costs_of(fit.backbone.load().config, model.exit_table.never(81, 4), ids, reads_first_row=False)
        spent = costs_of(model.config, model.exit_table, ids, bool(model.hashed_encoder.reads_first_row))
        assert name.endswith(f"{model.exit_table.num_layers} layers")
        assert model.exit_table.parameters["speedup"] == speedup
        assert whole.paper.sum() / spent.executed.sum() == pytest.approx(speedup, rel=0.1)
    # The dense model of two layers serves both speed-ups, and its seconds are counted once; that of four is shared.
    assert [each.start_seconds > 0 for each in choice.candidates] == [False, True, False]
    assert {each.passes for each in choice.candidates} == {2.0}


def test_depths_are_two_and_three_times_those_without_exits_unless_these_are_cheaper() -> None:
    by_layers = {layers: 12 / layers for layers in range(1, 13)}
    assert [depths_for(speedup, by_layers) for speedup in (1.5, 2.0, 3.0, 4.0, 6.0, 10.0)] == [
        [12], [12], [8, 12], [6, 9], [4, 6], [3, 4]
    ]  # fmt: skip
    assert depths_for(4.0, {1: 9.0, 2: 4.1, 3: 2.0, 4: 1.1}) == [3]


def test_a_depth_that_no_table_reaches_does_not_lose_the_one_before(
    trained: dict[str, Choice], monkeypatch: pytest.MonkeyPatch
) -> None:
    choice = trained["hash-depth"]

    def at(self: object, depths: Depths, speedup: float, depth: int) -> Candidate:
        if depth == 4:
            raise ImpossibleSpeedup("too fast", 1.0, 2.0)
        return choice.best

    monkeypatch.setattr(Depths, "for_speedup", lambda self, speedup: [2, 4])
    monkeypatch.setattr(type(METHODS["hash-depth"]), "_at", at)
    assert METHODS["hash-depth"].train(choice.fit).candidates == [choice.best]


def test_the_best_dense_model_teaches_at_every_depth(
    trained: dict[str, Choice], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lessons: list[Lesson] = []
    lesson = Fit.lesson
    monkeypatch.setattr(
        Fit, "lesson", lambda self, *given, **o: lessons.append(lesson(self, *given, **o)) or lessons[-1]
    )
    data = make_data(recipe=replace(RECIPE, epochs=1.0))
    fit = Fit(replace(trained["hash-depth"].fit.settings, output=tmp_path, task=data), data, current_processes())
    METHODS["hash-depth"].train(fit.with_settings(speedup=BEYOND_LAYER_1))
    taught = [each for each in lessons if each.teacher is not None]
    assert len(taught) == 1 and taught[0].depends["distill"] == [TAUGHT, 2.0]


def test_mutual_information_needs_a_label_for_each_text() -> None:
    refusal = METHODS["hash-mi"].refusal(make_data(Kind.TAGS).task)
    assert refusal is not None and "label for each text" in refusal
    assert METHODS["hash-frequency"].refusal(make_data(Kind.TAGS).task) is None


def test_fewer_layers_cost_their_share(backbone: Path, tmp_path: Path) -> None:
    data = make_data(recipe=replace(RECIPE, epochs=1.0))
    found = run_experiment(Experiment("first-layers", data, str(backbone)), tmp_path)
    assert [point.knob for point in found.curve] == [3.0, 2.0, 1.0]
    assert [point.paper_speedup for point in found.curve] == pytest.approx([4 / 3, 2.0, 4.0])
    assert found.passes == 2.0


def test_the_dense_model_is_the_whole_backbone(backbone: Path, tmp_path: Path) -> None:
    data = make_data(recipe=replace(RECIPE, epochs=1.0))
    found = run_experiment(Experiment("dense", data, str(backbone)), tmp_path)
    (point,) = found.curve
    assert (point.knob, point.paper_speedup, found.passes) == (4.0, 1.0, 2.0)
    assert point.speedup > 1, "rows that the head does not read are left out of the last layer"


def test_variants_of_a_method_do_not_replace_each_others_models() -> None:
    plain = result("hash-importance")
    taught = replace(plain, settings={"unlabelled": "texts.jsonl"})
    longer = replace(plain, settings={"epochs": 5.0, "bf16": True})
    assert taught.work != plain.work and taught.path != plain.path
    assert longer.work == plain.work and longer.path == plain.path, "trained otherwise, it is the same method"
