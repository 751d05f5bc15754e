"""Pruned heads: equal to masked ones, chosen by the paper's importance, counted as torch counts, saved and opened."""

import copy
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fitting_data import RECIPE, make_data
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

import hashee
from architectures import LAYERS, converted, make_exits, make_ids, make_mask, make_model
from hashee.cost.macs import layer_cost
from hashee.data.task import Kind
from hashee.data.task_types import TASK_TYPES
from hashee.data.tokenized import Tokenized
from hashee.engine import native
from hashee.errors import CheckpointError, UnsupportedModel
from hashee.export.loading import load
from hashee.study.head_pruning import (
    KEPT,
    PrunedModel,
    all_heads,
    attention_parts,
    head_importance,
    masked_heads,
    prune_heads_,
    pruned_stepwise,
    without_least,
)
from hashee.study.methods.head_prune import SHARES, HeadPrune
from hashee.training.evaluation import logits_for
from hashee.training.objective import TargetLoss
from hashee.training.processes import current_processes
from hashee.training.settings import FitSettings
from hashee.training.stages import Fit

# Four heads of eight numbers, so that compiled kernels take what is left of them.
WIDE = {"hidden_size": 32, "num_attention_heads": 4}
HEADS = ((0, 2), (1,), (0, 1, 2, 3), (1, 2, 3))
FAMILIES = {
    "bert": WIDE,
    "elasticbert": WIDE,
    "electra": WIDE,
    "roberta": WIDE,
    "roberta-prelayernorm": WIDE,
    "distilbert": {"dim": 32, "n_heads": 4},
}


def classifier(family: str = "bert", head: Any = AutoModelForSequenceClassification, **changes: Any) -> Any:
    return make_model(family, head, **(FAMILIES[family] | changes))


def masks(kept: Any = HEADS, heads: int = 4) -> list[torch.Tensor]:
    return [torch.tensor([[float(head in layer) for head in range(heads)]]) for layer in kept]


def pruned(model: Any, kept: Any = HEADS) -> PrunedModel:
    """Return a copy of a dense model on the packed blocks without some of its heads."""
    return PrunedModel(converted(copy.deepcopy(model), make_exits("full depth")), kept).eval()


def made_up_examples(number: int = 7) -> Tokenized:
    ids = [make_ids(1, 3 + row % 5, seed=row)[0].numpy() for row in range(number)]
    targets = np.arange(number) % 2
    return Tokenized(ids, [np.zeros_like(row) for row in ids], targets, None, padding=0)


@pytest.mark.parametrize("form", ["cheaper", "absorbed", "plain"])
@pytest.mark.parametrize(("batch", "length"), [(1, 3), (5, 12), (60, 36)])
@pytest.mark.parametrize("family", FAMILIES)
def test_pruned_heads_are_masked_heads(
    family: str, batch: int, length: int, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Few rows and many take other kernels, and so do the two forms of attention.
    if form != "cheaper":
        monkeypatch.setattr(hashee.engine.block, "absorbing_saves", lambda *numbers: 1 if form == "absorbed" else -1)
    model = classifier(family)
    ids, mask = make_ids(batch, length), make_mask("right", batch, length)
    with torch.no_grad(), masked_heads(model, masks()):
        expected = model(input_ids=ids, attention_mask=mask).logits
    with torch.no_grad():
        whole = model(input_ids=ids, attention_mask=mask).logits
    packed = pruned(model)
    shrunk = copy.deepcopy(model)
    prune_heads_(shrunk, HEADS)
    with torch.inference_mode():
        for found in (shrunk, packed, packed):  # once more, when the first layer's projections are looked up
            logits = found(input_ids=ids, attention_mask=mask).logits
            torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(whole, expected, atol=1e-2), "heads that are gone were not idle"


def test_heads_of_taggers_and_gradients_of_what_is_left() -> None:
    model = classifier("bert", AutoModelForTokenClassification)
    ids = make_ids()
    with masked_heads(model, masks()):
        model(input_ids=ids).logits.square().sum().backward()
    packed = pruned(model)
    packed(input_ids=ids).logits.square().sum().backward()
    before, after = attention_parts(model)[0], attention_parts(packed.model)[0]
    rows = [*range(8), *range(16, 24)]  # heads 0 and 2
    value, left = before.projections.modules[2], after.projections.modules[2]
    torch.testing.assert_close(left.weight.grad, value.weight.grad[rows], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(after.output.weight.grad, before.output.weight.grad[:, rows], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["albert", "modernbert", "mpnet"])
def test_families_whose_layers_have_no_heads_of_their_own_are_refused(family: str) -> None:
    with pytest.raises(UnsupportedModel, match="prune"):
        attention_parts(make_model(family, AutoModelForSequenceClassification))


def test_importance_is_the_mean_absolute_slope_of_the_loss() -> None:
    model, examples, objective = classifier().double(), made_up_examples(), TargetLoss(TASK_TYPES[Kind.CLASSES])
    kept = ((0, 1, 2, 3), (0, 2, 3), (0, 1, 2, 3), (0, 1, 2, 3))
    found = head_importance(model, examples, objective, kept)

    def loss(row: int, by_hand: list[torch.Tensor]) -> float:
        with torch.no_grad(), masked_heads(model, by_hand):
            logits = model(input_ids=torch.from_numpy(examples.ids[row])[None].long()).logits
        return float(torch.nn.functional.cross_entropy(logits, torch.tensor([int(examples.targets[row])])))

    slopes = torch.zeros(len(examples), LAYERS, 4, dtype=torch.float64)
    for row in range(len(examples)):
        for layer, heads in enumerate(kept):
            for head in heads:
                sides = []
                for shift in (1e-5, -1e-5):
                    by_hand = [mask.double() for mask in masks(kept)]
                    by_hand[layer][0, head] += shift
                    sides.append(loss(row, by_hand))
                slopes[row, layer, head] = (sides[0] - sides[1]) / 2e-5
    measured = torch.zeros_like(found)
    for layer, heads in enumerate(kept):
        measured[layer, list(heads)] = found[layer, list(heads)]
    torch.testing.assert_close(measured, slopes.abs().mean(0), atol=1e-7, rtol=1e-5)
    assert not torch.allclose(measured, slopes.mean(0).abs(), rtol=0.1), "opposite effects must not cancel"
    assert all(part.output._forward_pre_hooks == {} for part in attention_parts(model)), "no mask is left behind"


def test_layers_are_made_comparable_before_heads_go() -> None:
    importance = torch.tensor([[8.0, 6.0], [0.8, 0.7]])
    # Normalised: 0.80, 0.60 and 0.75, 0.66; as they are, those of the second layer would be the least.
    assert without_least(((0, 1), (0, 1)), importance, 1) == ((0,), (0, 1))
    assert without_least(((0, 1), (0, 1)), importance, 2) == ((0,), (0,))
    assert without_least(((0, 1), (0, 1)), importance, 4) == ((0,), (0,)), "a layer keeps its last head"
    assert without_least(((1,), (0, 1)), importance, 1) == ((1,), (0,)), "heads that are gone do not count"


def test_heads_go_a_tenth_at_a_time_by_what_is_measured_of_the_rest() -> None:
    asked = []

    def measure(kept: Any) -> torch.Tensor:
        asked.append(sum(map(len, kept)))
        # The last heads that are left matter least, whatever their number.
        return -torch.arange(40.0).view(4, 10) + 40

    whole = tuple(tuple(range(10)) for _ in range(4))
    found = list(pruned_stepwise(measure, whole, [32, 26, 4]))
    assert [sum(map(len, kept)) for kept in found] == [32, 26, 4]
    assert asked == [40, 36, 32, 28, 26, 22, 18, 14, 10, 6]
    for before, after in pairwise(found):
        assert all(set(late) <= set(early) for early, late in zip(before, after, strict=True))
    assert list(pruned_stepwise(measure, whole, [0])) == [((0,), (0,), (0,), (0,))], "one head for each layer stays"


def test_what_is_saved_opens_equal(tmp_path: Path) -> None:
    model = pruned(classifier())
    model.save_pretrained(tmp_path)
    opened = PrunedModel.from_folder(tmp_path)
    ids = make_ids()
    with torch.inference_mode():
        expected = model(input_ids=ids).logits
        assert torch.equal(opened(input_ids=ids).logits, expected)
        # Heads that are gone are zeros in the file, so the folder is a model of the usual shape that says the same.
        torch.testing.assert_close(load(tmp_path)(input_ids=ids).logits, expected, atol=1e-5, rtol=1e-5)
    assert opened.kept == HEADS and opened.share == 10 / 16
    assert all(torch.equal(a, b) for a, b in zip(opened.parameters(), model.parameters(), strict=True))
    for damaged in ({"kept": [[0]]}, {"kept": [[0], [0], [0], [4]]}, {"kept": [[0], [0], [0], []]}, {}, [1]):
        (tmp_path / KEPT).write_text(json.dumps(damaged))
        with pytest.raises(CheckpointError, match="fit it again"):
            PrunedModel.from_folder(tmp_path)


def counted(model: Any, ids: torch.Tensor, reads: str) -> int:
    """Return the multiply-accumulates in matrix products that torch counts in a model's layers."""
    with torch.no_grad():
        model(input_ids=ids)  # what is looked up is there
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        model(input_ids=ids)
    rows = ids.shape[1] if reads == "all" else 1
    head = rows * 2 * 32 if reads == "all" else 32 * 32 + 2 * 32  # pooler and classifier
    return counter.get_total_flops() // 2 - head


@pytest.mark.parametrize("length", [3, 12, 30])
def test_counted_macs_are_those_of_torch(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Torch's counter does not know the products in kernels made for few rows.
    monkeypatch.setattr(native, "library", lambda: None)
    ids, n = make_ids(1, length), np.array([length])
    rows = Tokenized([ids[0].numpy()], None, None, None, padding=0)
    for head, reads in ((AutoModelForSequenceClassification, "first"), (AutoModelForTokenClassification, "all")):
        dense = classifier("bert", head)
        packed = pruned(dense)
        layers = [layer_cost(packed.shape, layer, n, n) for layer in range(1, LAYERS + 1)]
        costs = packed.costs(rows)
        assert costs.paper.tolist() == [sum(layer.macs for layer in layers)]
        prune_heads_(dense, HEADS)
        assert counted(dense, ids, reads) == sum(layer.matmul_macs for layer in layers)
        d, left = 32, [len(heads) for heads in HEADS]
        by_hand = sum(4 * length * d * 8 * k + 2 * length**2 * (8 * k + k) for k in left)
        by_hand += LAYERS * length * (2 * d * 40 + 4 * d)
        assert costs.paper.tolist() == [by_hand]
        last = 1 if reads == "first" else length  # rows that the last layer updates
        updated = [length] * (LAYERS - 1) + [last]
        around = sum(m * (2 * k * length + 4 * d) for m, k in zip(updated, left, strict=True))
        assert costs.executed.tolist() == [counted(packed, ids, reads) + around]


def test_a_model_with_all_its_heads_costs_what_it_did() -> None:
    model = pruned(classifier(), tuple((0, 1, 2, 3) for _ in range(LAYERS)))
    examples = made_up_examples()
    count = hashee.count_flops(model.model, [row.tolist() for row in examples.ids])
    costs = model.costs(examples)
    assert (costs.executed.sum(), costs.paper.sum()) == (count.executed_macs, count.paper_macs)
    fewer = pruned(classifier()).costs(examples)
    assert (fewer.executed < costs.executed).all() and (fewer.paper < costs.paper).all()


def test_from_the_dense_model_to_operating_points(backbone: Path, tmp_path: Path) -> None:
    data, method = make_data(recipe=replace(RECIPE, epochs=1.0)), HeadPrune()
    settings = FitSettings(task=data, output=tmp_path, backbone=str(backbone), quiet=True)
    fit = Fit(settings, data, current_processes())
    choice = method.train(fit)
    assert len(choice.candidates) == len(SHARES)
    assert [candidate.passes for candidate in choice.candidates] == [2.0] * len(SHARES)
    models = [method.open(candidate.folder) for candidate in choice.candidates]
    assert [sum(map(len, model.kept)) for model in models] == [10, 7, 5, 4], "of 4 layers with 3 heads each"
    costs = [method.predict(model, fit.dev, fit.processes, 0.0).costs.executed.mean() for model in models]
    assert costs == sorted(costs, reverse=True) and len(set(costs)) == len(costs)
    assert choice.dense is not None
    start = fit.backbone.packed(choice.dense.backbone.load(0))
    assert all_heads(start) == tuple(((0, 1, 2),) * 4)
    expected = logits_for(PrunedModel(start, models[0].kept), fit.dev, fit.processes)
    found = method.predict(models[0], fit.dev, fit.processes, models[0].share).logits
    assert not np.allclose(np.stack(found), np.stack(expected), atol=1e-4), "what is left was trained"
    dev = np.mean([row.argmax() == target for row, target in zip(found, data.dev.targets or (), strict=True)])
    assert dev == choice.candidates[0].score, "what is opened is what was measured"
    again = method.train(Fit(settings, data, current_processes()))
    assert [each.record for each in again.candidates] == [each.record for each in choice.candidates]
