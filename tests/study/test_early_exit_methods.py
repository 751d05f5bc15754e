"""The defining property of each method with internal classifiers, on tiny models that were trained in seconds."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fitting_data import RECIPE, make_data

from hashee.data.task import Kind
from hashee.data.task_types import TASK_TYPES
from hashee.export.loading import load
from hashee.study.methods import METHODS
from hashee.study.methods.early_exit import judged_by_exits
from hashee.study.multi_exit import MultiExitModel, new_classifiers
from hashee.study.objectives import Alternating, CertaintyLoss, ExitLosses, SelfDistillation
from hashee.training.method import Choice, Method
from hashee.training.objective import LogitDistillation, TargetLoss
from hashee.training.outputs import Batch, ExitOutputs, Outputs
from hashee.training.processes import current_processes
from hashee.training.settings import FitSettings
from hashee.training.stages import Fit
from hashee.training.trainer import StepTrainer

METHODS_WITH_EXITS = ("berxit", "deebert", "fastbert", "hash-depth-x-exit", "hash-x-exit", "pabee")
FULL_DEPTH = {
    "berxit": 1.01,
    "deebert": 0.0,
    "fastbert": 0.0,
    "hash-depth-x-exit": 1.01,
    "hash-x-exit": 1.01,
    "pabee": 4.0,
}


@pytest.fixture(scope="module")
def trained(backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Method, Choice]]:
    """Every method, trained in one folder, so that those that start from it share the dense model."""
    output = tmp_path_factory.mktemp("work")
    data = make_data(recipe=replace(RECIPE, epochs=1.0))
    settings = FitSettings(task=data, output=output, backbone=str(backbone), quiet=True, speedup=1.5)
    return {
        name: (METHODS[name], METHODS[name].train(Fit(settings, data, current_processes())))
        for name in METHODS_WITH_EXITS
    }


def opened(trained: dict[str, tuple[Method, Choice]], name: str) -> tuple[Method, Any, Fit]:
    method, choice = trained[name]
    return method, method.open(choice.best.folder), choice.fit


@pytest.mark.parametrize("name", METHODS_WITH_EXITS)
def test_every_method_has_the_same_passes(name: str, trained: dict[str, tuple[Method, Choice]]) -> None:
    _, choice = trained[name]
    assert [candidate.passes for candidate in choice.candidates] == [2.0] * len(choice.candidates)


@pytest.mark.parametrize("name", METHODS_WITH_EXITS)
def test_nobody_leaves_early_at_full_depth(name: str, trained: dict[str, tuple[Method, Choice]]) -> None:
    method, model, fit = opened(trained, name)
    assert FULL_DEPTH[name] == method.knobs(model)[0], "the most costly point comes first"
    found = method.predict(model, fit.dev, fit.processes, FULL_DEPTH[name])
    with torch.no_grad():
        inputs = fit.dev.inputs(range(len(fit.dev)))
        expected = model.model(**inputs).logits
    np.testing.assert_allclose(np.stack(found.logits), expected.numpy(), atol=1e-5)


@pytest.mark.parametrize("name", ["hash-x-exit", "hash-depth-x-exit"])
def test_without_leaving_hash_x_exit_is_hashee(name: str, trained: dict[str, tuple[Method, Choice]]) -> None:
    method, model, fit = opened(trained, name)
    hashed = load(trained[name][1].best.folder)
    assert hashed.exit_table.method == "importance" and len(set(hashed.exit_table.exit_layers.tolist())) > 1
    found = method.predict(model, fit.dev, fit.processes, 1.01)
    with torch.no_grad():
        expected = hashed(**fit.dev.inputs(range(len(fit.dev)))).logits
    np.testing.assert_allclose(np.stack(found.logits), expected.numpy(), atol=1e-5)


@pytest.mark.parametrize("name", METHODS_WITH_EXITS)
def test_a_sweep_is_what_runs(name: str, trained: dict[str, tuple[Method, Choice]]) -> None:
    method, model, fit = opened(trained, name)
    knobs = method.knobs(model)
    swept = method.sweep(model, fit.dev, fit.processes, knobs)
    for knob, found in zip(knobs, swept, strict=True):
        run = method.predict(model, fit.dev, fit.processes, knob)
        # A confidence that lies on the threshold to the last bit may fall either way.
        differ = run.costs.executed != found.costs.executed
        assert differ.sum() <= 1
        np.testing.assert_allclose(np.stack(run.logits)[~differ], np.stack(found.logits)[~differ], atol=1e-4, rtol=1e-4)
    costs = [found.costs.executed.mean() for found in swept]
    assert costs == sorted(costs, reverse=True) and costs[-1] < costs[0], "a knob that is turned saves something"


def test_deebert_leaves_the_dense_model_as_it_is(trained: dict[str, tuple[Method, Choice]]) -> None:
    _, model, fit = opened(trained, "deebert")
    dense = fit.dense().backbone.load()
    for name, parameter in dense.named_parameters():
        torch.testing.assert_close(dict(model.model.named_parameters())[name], parameter)


@pytest.mark.parametrize("name", ["deebert", "fastbert", "hash-depth-x-exit", "hash-x-exit"])
def test_what_needs_a_distribution_refuses_scores(name: str) -> None:
    refusal = METHODS[name].refusal(make_data(Kind.SCORE).task)
    assert refusal is not None and "regression" in refusal


@pytest.mark.parametrize("name", ["pabee", "berxit"])
def test_scores_are_learned_too(name: str, backbone: Path, tmp_path: Path) -> None:
    data = make_data(Kind.SCORE, recipe=replace(RECIPE, epochs=1.0))
    method = METHODS[name]
    assert method.refusal(data.task) is None
    settings = FitSettings(task=data, output=tmp_path, backbone=str(backbone), quiet=True)
    fit = Fit(settings, data, current_processes())
    model = method.open(method.train(fit).best.folder)
    knobs = method.knobs(model)
    costs = [each.costs.executed.mean() for each in method.sweep(model, fit.dev, fit.processes, knobs)]
    assert costs[-1] < costs[0]


def test_classifiers_that_follow_have_no_gradients_for_the_encoder(trained: dict[str, tuple[Method, Choice]]) -> None:
    _, choice = trained["hash-depth-x-exit"]
    model = load(choice.best.folder)
    exits = MultiExitModel(model, new_classifiers(model, model.exit_table.num_layers - 1), moves_states=False).train()
    outputs = exits(**choice.fit.dev.inputs(range(4))).exits
    outputs[0].logits.sum().backward()
    assert all(parameter.grad is None for parameter in model.parameters())
    assert any(parameter.grad is not None for parameter in exits.classifiers[0].parameters())
    outputs[-1].logits.sum().backward()
    assert any(parameter.grad is not None for parameter in model.hashed_encoder.parameters())


# --- objectives ---------------------------------------------------------------------------------------------


def make_outputs(logits: list[list[float]]) -> Outputs:
    exits = tuple(
        ExitOutputs(layer, torch.tensor([row]), torch.tensor([0.5])) for layer, row in enumerate(logits, start=1)
    )
    return Outputs(exits[-1].logits, exits=exits)


def make_batch(target: int = 0, step: int = 0) -> Batch:
    return Batch((0,), {}, torch.ones(1, dtype=torch.long), torch.tensor([target]), step=step)


def test_exits_are_weighed_by_depth_or_equally() -> None:
    outputs, batch = make_outputs([[0.0, 0.0], [1.0, 0.0], [3.0, 0.0]]), make_batch()
    losses = [float(TargetLoss(TASK_TYPES[Kind.CLASSES])(Outputs(each.logits), batch)) for each in outputs.exits]
    by_depth = ExitLosses(TargetLoss(TASK_TYPES[Kind.CLASSES]), by_depth=True)
    assert float(by_depth(outputs, batch)) == pytest.approx((losses[0] + 2 * losses[1] + 3 * losses[2]) / 6)
    assert float(ExitLosses(TargetLoss(TASK_TYPES[Kind.CLASSES]))(outputs, batch)) == pytest.approx(sum(losses) / 3)
    internal = ExitLosses(TargetLoss(TASK_TYPES[Kind.CLASSES]), internal_only=True)
    assert float(internal(outputs, batch)) == pytest.approx((losses[0] + losses[1]) / 2)


def test_students_follow_the_last_classifier() -> None:
    follow = SelfDistillation(LogitDistillation(TASK_TYPES[Kind.CLASSES], temperature=1.0))
    assert float(follow(make_outputs([[2.0, 0.0], [2.0, 0.0]]), make_batch())) == pytest.approx(0.0, abs=1e-6)
    assert float(follow(make_outputs([[0.0, 0.0], [2.0, 0.0]]), make_batch())) > 0.1


def test_the_last_exit_and_all_of_them_take_turns() -> None:
    last = TargetLoss(TASK_TYPES[Kind.CLASSES])
    both = Alternating(last, ExitLosses(last))
    outputs = make_outputs([[0.0, 3.0], [3.0, 0.0]])
    assert both(outputs, make_batch(step=0)) == last(outputs, make_batch())
    assert both(outputs, make_batch(step=1)) == ExitLosses(last)(outputs, make_batch())


def test_certainty_is_learned_from_what_is_right() -> None:
    outputs = make_outputs([[0.0, 3.0], [3.0, 0.0], [0.0, 3.0]])
    assert float(CertaintyLoss(classes=True)(outputs, make_batch(target=0))) == pytest.approx(0.25)
    sure = replace(outputs, exits=tuple(replace(each, certainty=torch.tensor([1.0])) for each in outputs.exits))
    one_of_two = CertaintyLoss(classes=True)(sure, make_batch(target=0))
    assert float(one_of_two) == pytest.approx(0.5), "one exit is wrong, and the last is never asked"


def test_classifiers_learn_faster_than_the_encoder_and_every_weight_learns_once(backbone: Path, tmp_path: Path) -> None:
    data = make_data(recipe=replace(RECIPE, learning_rate=1e-3))
    fit = Fit(FitSettings(task=data, output=tmp_path, backbone=str(backbone), quiet=True), data, current_processes())
    model = fit.backbone.packed(fit.backbone.load(0))
    exits = MultiExitModel(model, new_classifiers(model, fit.backbone.depth - 1))
    trainer = StepTrainer(
        judged_by_exits(fit, fit.job("exits", exits)), fit.settings, fit.processes, tmp_path / "steps"
    )
    rates = {id(weight): group["lr"] for group in trainer.create_optimizer().param_groups for weight in group["params"]}
    assert len(rates) == sum(len(group["params"]) for group in trainer.optimizer.param_groups), "nothing twice"
    for name, weight in exits.named_parameters():
        assert rates[id(weight)] == pytest.approx(20e-3 if name.startswith("classifiers.") else 1e-3), name
