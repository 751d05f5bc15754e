"""A cascade: the small model alone, the large one alone, and in between each text stops where a model is sure."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fitting_data import RECIPE, make_backbone, make_data

from hashee.data.task import Kind
from hashee.errors import CheckpointError, InputError, UnsupportedModel
from hashee.export.loading import load
from hashee.hf.flops import costs_of
from hashee.study.cascade import (
    CascadeModel,
    DifficultyMargin,
    head_macs,
    models_passed,
    write_cascade,
)
from hashee.study.exit_rules import confidence
from hashee.study.methods.cascade import THRESHOLDS, Cascade, first_layers
from hashee.study.methods.first_layers import DENSE
from hashee.study.students import student_of
from hashee.training.backbone import open_backbone
from hashee.training.method import METHODS
from hashee.training.outputs import Batch, Outputs
from hashee.training.processes import current_processes
from hashee.training.settings import FitSettings
from hashee.training.stages import WORK, Choice, Fit


@pytest.fixture(scope="module")
def choice(backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Choice:
    """Cascades of a tiny model, trained in seconds."""
    data = make_data(recipe=replace(RECIPE, epochs=1.0))
    settings = FitSettings(task=data, output=tmp_path_factory.mktemp("work"), backbone=str(backbone), quiet=True)
    return Cascade().train(Fit(settings, data, current_processes()))


@pytest.fixture
def model(choice: Choice) -> CascadeModel:
    """The cascade with the deeper of the small models."""
    return Cascade().open(choice.candidates[0].folder)


def say(model: Any, fit: Fit) -> np.ndarray:
    with torch.no_grad():
        logits: np.ndarray = model(**fit.dev.inputs(range(len(fit.dev)))).logits.numpy()
    return logits


def cost(model: Any, fit: Fit) -> Any:
    return costs_of(model.config, model.exit_table, [row.tolist() for row in fit.dev.ids], True)


def between(model: CascadeModel, fit: Fit) -> float:
    """Return a threshold that about half of the texts reach in the small model, far from all of them."""
    sure = np.sort(confidence(torch.from_numpy(say(model.models[0], fit))).numpy())
    gap = int(np.argmax(np.diff(sure[10:-10]))) + 10
    return float(sure[gap : gap + 2].mean())


def test_a_small_and_a_large_model_each_have_their_passes(choice: Choice) -> None:
    depths = [[m.exit_table.num_layers for m in Cascade().open(each.folder).models] for each in choice.candidates]
    assert depths == [[2, 4], [1, 4]], "half of four layers, a third, and all"
    # Two passes for the large model; for a student one, and one of the dense model that it starts from.
    assert [each.passes for each in choice.candidates] == [2.0, 2.0]


def test_the_large_model_is_the_dense_baseline_and_is_trained_once(choice: Choice) -> None:
    fit = choice.fit
    folder = fit.folder / WORK / "dense-4"
    trained = (folder / "stage.json").stat().st_mtime_ns
    baseline = DENSE.train(fit).best
    assert baseline.folder == folder and (folder / "stage.json").stat().st_mtime_ns == trained
    large = Cascade().open(choice.candidates[0].folder).models[-1]
    np.testing.assert_array_equal(say(large, fit), say(load(folder), fit))


def test_a_threshold_that_everybody_reaches_is_the_small_model(choice: Choice, model: CascadeModel) -> None:
    found = Cascade().predict(model, choice.fit.dev, choice.fit.processes, 0.0)
    np.testing.assert_allclose(np.stack(found.logits), say(model.models[0], choice.fit), atol=1e-5)
    alone = cost(model.models[0], choice.fit)
    assert (found.costs.executed == alone.executed).all() and (found.costs.paper == alone.paper).all()
    dev = np.mean([row.argmax() == label for row, label in zip(found.logits, choice.fit.dev.targets, strict=True)])
    assert dev == choice.candidates[0].score, "what is opened is what was measured"


def test_a_threshold_that_nobody_reaches_is_the_large_model_at_the_cost_of_both(
    choice: Choice, model: CascadeModel
) -> None:
    found = Cascade().predict(model, choice.fit.dev, choice.fit.processes, 1.01)
    np.testing.assert_allclose(np.stack(found.logits), say(model.models[1], choice.fit), atol=1e-5)
    small, large = (cost(each, choice.fit) for each in model.models)
    deciding = head_macs(model.models[0])
    assert deciding == 24 * 24 + 24 * 2, "pooler and classifier of the model that sent all texts on"
    assert (found.costs.executed == small.executed + large.executed + deciding).all()
    assert (found.costs.paper == small.paper + large.paper + deciding).all()


def test_texts_go_on_that_the_small_model_is_unsure_of(choice: Choice, model: CascadeModel) -> None:
    fit, threshold = choice.fit, between(model, choice.fit)
    small, large = (say(each, fit) for each in model.models)
    goes_on = confidence(torch.from_numpy(small)).numpy() < threshold
    assert 0 < goes_on.sum() < len(goes_on)
    seen: list[int] = []
    handle = model.models[1].register_forward_pre_hook(
        lambda module, inputs, options: seen.append(len(options["input_ids"])), with_kwargs=True
    )
    found = Cascade().predict(model, fit.dev, fit.processes, threshold)
    handle.remove()
    assert sum(seen) == goes_on.sum(), "the large model runs on these and no others"
    np.testing.assert_allclose(np.stack(found.logits), np.where(goes_on[:, None], large, small), atol=1e-5)
    costs = model.costs(fit.dev)
    assert (found.costs.executed == costs.executed[np.arange(len(goes_on)), goes_on.astype(int)]).all()


def test_a_text_does_not_depend_on_its_neighbours(choice: Choice, model: CascadeModel) -> None:
    fit, threshold = choice.fit, between(model, choice.fit)
    with torch.inference_mode():
        logits, passed = model.leave(fit.dev.inputs(range(len(fit.dev))), threshold)
        for row in range(12):
            alone, models = model.leave(fit.dev.inputs([row]), threshold)
            torch.testing.assert_close(alone[0], logits[row], atol=1e-5, rtol=1e-5)
            assert int(models[0]) == int(passed[row])
    assert set(passed.tolist()) == {1, 2}


def test_a_sweep_is_what_runs(choice: Choice, model: CascadeModel) -> None:
    method, fit = METHODS["cascadebert"], choice.fit
    knobs = [*method.knobs(model), between(model, fit)]
    swept = method.sweep(model, fit.dev, fit.processes, knobs)
    for knob, found in zip(knobs, swept, strict=True):
        ran = method.predict(model, fit.dev, fit.processes, knob)
        np.testing.assert_allclose(np.stack(found.logits), np.stack(ran.logits), atol=1e-5)
        assert (found.costs.executed == ran.costs.executed).all() and (found.costs.paper == ran.costs.paper).all()
    means = [found.costs.executed.mean() for found in swept[: len(THRESHOLDS)]]
    assert means == sorted(means, reverse=True) and means[0] > means[-1], "the most costly point comes first"


def test_the_first_model_that_is_sure_has_the_word() -> None:
    logits = torch.tensor([[[2.0, 0.0], [9.0, 0.0], [0.0, 0.0]], [[0.0, 0.1], [0.0, 0.1], [0.0, 0.1]]])
    assert models_passed(logits, 0.8).tolist() == [1, 3]
    assert models_passed(logits, 0.95).tolist() == [2, 3]
    assert models_passed(logits, 0.0).tolist() == [1, 1]


def margin_loss(logits: torch.Tensor, easy: list[bool], margin: float = 0.3) -> torch.Tensor:
    count = len(easy)
    right = torch.tensor([[1.0, 0.0] if each else [0.0, 1.0] for each in easy])
    batch = Batch(tuple(range(count)), {}, torch.ones(count, dtype=torch.long), torch.zeros(count, dtype=torch.long))
    return DifficultyMargin(margin)(Outputs(logits), batch, Outputs(right))


def test_no_loss_once_easy_and_hard_examples_are_apart() -> None:
    apart = torch.tensor([[4.0, 0.0], [0.0, 5.0], [0.1, 0.0]])
    assert float(margin_loss(apart, [True, True, False])) == 0.0
    assert float(margin_loss(apart, [True, True, False], margin=0.5)) > 0.0
    assert float(margin_loss(apart, [True, True, True])) == 0.0, "nothing to compare"
    assert float(margin_loss(apart, [False, False, False])) == 0.0


def test_the_loss_by_hand_and_its_slope() -> None:
    # Sure to 0.9, 0.6 (easy) and 0.8 (hard): what is missing to a gap of 0.3 is 0.2 and 0.5.
    sure = torch.tensor([0.9, 0.6, 0.8])
    logits = torch.stack([sure.log(), (1 - sure).log()], dim=1).requires_grad_()
    loss = margin_loss(logits, [True, True, False])
    assert loss.item() == pytest.approx(3 * (0.2 + 0.5) / 2), "the mean over pairs for each of three examples"
    loss.backward()
    slope = logits.grad[:, 0]
    assert slope[0] < 0 and slope[1] < 0 and slope[2] > 0, "easy examples become surer, hard ones less sure"
    alone = torch.stack([sure.log(), (1 - sure).log()], dim=1).requires_grad_()
    margin_loss(alone, [True, True, True]).backward()
    assert not alone.grad.any()


def test_small_models_are_first_layers_of_the_backbone_with_the_passes_of_other_methods(choice: Choice) -> None:
    whole, (half, third) = choice.fit.backbone.load(), [small.model for small in first_layers(choice.fit)]
    assert [len(small.bert.encoder.layer) for small in (half, third)] == [2, 1]
    assert [candidate.passes for candidate in choice.candidates] == [2.0, 2.0]
    made = half
    for own, other in zip(made.bert.encoder.layer, whole.bert.encoder.layer, strict=False):
        states = other.state_dict()
        assert all(torch.equal(tensor, states[name]) for name, tensor in own.state_dict().items())
    assert torch.equal(made.bert.embeddings.word_embeddings.weight, whole.bert.embeddings.word_embeddings.weight)


def test_layers_of_different_kinds_are_not_exchanged(tmp_path: Path) -> None:
    folder = make_backbone(tmp_path / "modern", "modernbert", layers=4)
    with pytest.raises(UnsupportedModel, match="none can take another's place"):
        student_of(open_backbone(str(folder), make_data().task, None), [2, 4], seed=0)


def test_a_complete_smaller_model_may_come_first(choice: Choice, tmp_path: Path) -> None:
    small = make_backbone(tmp_path / "small", layers=1, hidden_size=16, num_attention_heads=2)
    method = Cascade(small_backbone=str(small))
    found = method.train(choice.fit)
    assert [candidate.passes for candidate in found.candidates] == [2.0] and found.dense is None
    opened = method.open(found.best.folder)
    assert [each.config.hidden_size for each in opened.models] == [16, 24]
    swept = method.sweep(opened, choice.fit.dev, choice.fit.processes, (1.01, 0.0))
    np.testing.assert_allclose(np.stack(swept[0].logits), say(opened.models[1], choice.fit), atol=1e-5)
    np.testing.assert_allclose(np.stack(swept[1].logits), say(opened.models[0], choice.fit), atol=1e-5)
    short = make_backbone(tmp_path / "short", layers=1, max_position_embeddings=16)
    with pytest.raises(InputError, match="takes 16 tokens"):
        Cascade(small_backbone=str(short)).train(choice.fit)


def test_only_classes_have_one_confidence_for_each_text() -> None:
    assert Cascade().refusal(make_data(Kind.CLASSES).task) is None
    for kind in (Kind.LABELS, Kind.SCORE, Kind.TAGS):
        assert "needs one class for each text" in (Cascade().refusal(make_data(kind).task) or "")


def test_folders_that_are_no_cascade_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no cascade"):
        CascadeModel.from_folder(tmp_path)
    with pytest.raises(InputError, match="must lie beside it"):
        write_cascade(tmp_path / "cascade", [tmp_path / "elsewhere" / "small"])
