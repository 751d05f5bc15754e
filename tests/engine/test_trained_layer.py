"""Layers that train in kernels: gradients equal those of torch, dropout is what it says, the rest is left to torch."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification

from architectures import converted, make_exits, make_ids, make_mask, make_model
from hashee.engine import block, native
from hashee.engine.native import training
from hashee.engine.native.training import Drop, Sequences, SublayerEnd
from which_kernels import needs_kernels, recorded_training

pytestmark = needs_kernels
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
WIDTHS = {"hidden_size": 96, "num_attention_heads": 4, "intermediate_size": 200}


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of active rows of the layers that ran in kernels."""
    return recorded_training(monkeypatch)


def in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all layers train in torch."""
    monkeypatch.setattr(block, "layer_in_kernels", lambda *_: None)


def classifier(exits: str = "exits at 0", **changes: Any) -> Any:
    """Return a converted model in training mode; without dropout if nothing else is said."""
    dense = make_model("bert", AutoModelForSequenceClassification, **(WIDTHS | NO_DROPOUT | changes))
    for parameter in dense.parameters():
        parameter.data *= 1 if parameter.ndim == 1 else 0.3  # or the function is so steep that rounding shows
    return converted(dense, make_exits(exits)).train()


def loss_and_gradients(model: Any, half: bool = False, seed: int = 0) -> tuple[float, dict[str, Tensor]]:
    """Run a step; keys' biases are left out, as scores do not depend on them and their gradient is rounding."""
    torch.manual_seed(seed)
    model.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
        logits = model(make_ids(), make_mask("mixed lengths")).logits
    loss = (logits.float() * torch.arange(1.0, 11.0).view(5, 2)).sin().sum()
    loss.backward()
    grads = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    return loss.item(), {name: grad.clone() for name, grad in grads.items() if "key.bias" not in name}


def furthest(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Return the largest error of a parameter's gradient, relative to its norm."""
    assert found.keys() == expected.keys()
    return max(float((found[name] - each).norm() / each.norm()) for name, each in expected.items())


@pytest.mark.parametrize("exits", ["full depth", "random exits", "exits at 0"])
@pytest.mark.parametrize("heads", [2, 4, 12])
def test_gradients_equal_those_of_torch(
    variant: str, exits: str, heads: int, trained: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = classifier(exits, num_attention_heads=heads)
    loss, grads = loss_and_gradients(model)
    assert trained
    assert all(above <= below for below, above in pairwise(trained))
    in_torch(monkeypatch)
    expected_loss, expected = loss_and_gradients(model)
    assert loss == pytest.approx(expected_loss, abs=1e-4)
    assert furthest(grads, expected) <= 1e-4


def test_in_bfloat16_they_are_as_close_to_float32_as_those_of_torch(
    variant: str, trained: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = classifier()
    _, found = loss_and_gradients(model, half=True)
    assert trained
    assert all(each.dtype == torch.float32 for each in found.values())
    in_torch(monkeypatch)
    _, exact = loss_and_gradients(model)
    _, usual = loss_and_gradients(model, half=True)
    assert furthest(found, exact) <= max(0.02, 1.5 * furthest(usual, exact))
    assert furthest(found, exact) > 1e-5  # that products were rounded at all


def test_only_what_is_trained_has_a_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    model = classifier()
    frozen = model.bert.encoder.layer[1].requires_grad_(False)
    model.bert.embeddings.requires_grad_(False)
    _, found = loss_and_gradients(model)
    assert all(parameter.grad is None for parameter in frozen.parameters())
    in_torch(monkeypatch)
    assert furthest(found, loss_and_gradients(model)[1]) <= 1e-4


def test_gradients_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    model = classifier()
    _, once = loss_and_gradients(model)
    logits = model(make_ids(), make_mask("mixed lengths")).logits
    loss = (logits * torch.arange(1.0, 11.0).view(5, 2)).sin().sum()
    model.zero_grad()
    loss.backward(retain_graph=True)
    loss.backward()
    twice = {name: parameter.grad / 2 for name, parameter in model.named_parameters() if name in once}
    assert furthest(twice, once) <= 1e-5


@pytest.mark.parametrize("which", ["hidden_dropout_prob", "attention_probs_dropout_prob"])
def test_gradients_are_those_of_the_function_with_dropout(which: str, trained: list[int]) -> None:
    model = classifier(**{which: 0.3})
    # The dropout of embeddings is torch's; its mask follows from the seed too.
    _, grads = loss_and_gradients(model)
    assert trained
    parameters = {name: parameter for name, parameter in model.named_parameters() if name in grads}
    torch.manual_seed(1)
    for direction in ({name: torch.randn_like(each) for name, each in parameters.items()} for _ in range(3)):
        slope = sum(float((grads[name] * each).double().sum()) for name, each in direction.items())
        ends = []
        for step in (2e-4, -4e-4):
            with torch.no_grad():
                for name, each in direction.items():
                    parameters[name].add_(each, alpha=step)
            ends.append(loss_and_gradients(model)[0])
        with torch.no_grad():
            for name, each in direction.items():
                parameters[name].add_(each, alpha=2e-4)
        assert (ends[0] - ends[1]) / 4e-4 == pytest.approx(slope, rel=0.02, abs=0.02)


def test_a_seed_gives_the_same_step_and_another_seed_another_one() -> None:
    model = classifier(hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.2)
    first, again, other = (loss_and_gradients(model, seed=seed) for seed in (3, 3, 4))
    assert first[0] == again[0]
    assert furthest(first[1], again[1]) == 0.0
    assert first[0] != other[0]


def test_evaluation_drops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = classifier(hidden_dropout_prob=0.5, attention_probs_dropout_prob=0.5).eval()
    losses = {loss_and_gradients(model, seed=seed)[0] for seed in range(3)}
    assert len(losses) == 1


def end_of(probability: float, width: int = 64) -> SublayerEnd:
    """Return a norm that changes nothing but scale, after dropout."""
    return SublayerEnd(torch.zeros(width), torch.ones(width), torch.zeros(width), 1e-5, Drop(probability, 7))


def test_so_many_are_dropped_and_the_rest_makes_up_for_it(variant: str) -> None:
    rows, width, probability = 2000, 64, 0.1
    grad = torch.ones(rows, width)
    # Through a norm of which only the scale is left, the gradient of a product is zero where it was dropped.
    normed, scale = torch.zeros(rows, width), torch.ones(rows)
    noise = torch.randn(rows, width, generator=torch.Generator().manual_seed(0))
    product, *_ = end_of(probability).backward_(grad + noise, normed, scale, torch.float32)
    dropped = (product == 0).float()
    assert float(dropped.mean()) == pytest.approx(probability, abs=0.005)
    # Neither rows nor columns are dropped together.
    assert float(dropped.mean(1).std()) == pytest.approx((probability * (1 - probability) / width) ** 0.5, rel=0.15)
    assert float(dropped.mean(0).std()) == pytest.approx((probability * (1 - probability) / rows) ** 0.5, rel=0.4)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_masks_and_sums_do_not_depend_on_threads(variant: str, threads: int) -> None:
    generator = torch.Generator().manual_seed(0)
    product, residual = (torch.randn(77, 64, generator=generator) for _ in range(2))
    before = torch.get_num_threads()
    ended, changed = [], []
    try:
        for count in (1, threads):
            torch.set_num_threads(count)
            ended.append(end_of(0.2).forward(product, residual))
            changed.append(end_of(0.2).backward_(residual.clone(), ended[-1].normed, ended[-1].scale, torch.float32))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(ended[0].states, ended[1].states)
    assert all(torch.equal(one, other) for one, other in zip(*changed, strict=True))


@pytest.mark.parametrize("length", [1, 7, 32, 33, 130])
def test_attention_of_long_texts(variant: str, length: int) -> None:
    heads, width, lengths = 3, 24, (length, max(1, length // 2))
    generator = torch.Generator().manual_seed(length)
    query, key, value = (torch.randn(sum(lengths), heads * width, generator=generator) for _ in range(3))
    slots = torch.zeros(2, length, dtype=torch.long)
    slots[0], slots[1, : lengths[1]] = torch.arange(length), torch.arange(length, sum(lengths))
    counts = torch.tensor(lengths)
    attention = training.Attention(Sequences(slots, counts, counts), heads, width**-0.5, Drop(0.0, 0))
    inputs = [each.clone().requires_grad_() for each in (query, key, value)]
    expected = torch.cat(
        [
            nn.functional.scaled_dot_product_attention(*(each.view(-1, heads, width).transpose(0, 1) for each in parts))
            .transpose(0, 1)
            .flatten(1)
            for parts in zip(*(each.split(lengths) for each in inputs), strict=True)
        ]
    )
    grad = torch.randn(expected.shape, generator=generator)
    expected.backward(grad)
    assert torch.allclose(attention.forward(query, key, value), expected, atol=1e-5)
    for found, each in zip(attention.backward(query, key, value, grad), inputs, strict=True):
        assert torch.allclose(found, each.grad, atol=1e-5, rtol=1e-4)


def _hook(model: Any) -> None:
    model.bert.encoder.layer[0].output.dense.register_forward_hook(lambda *_: None)


def _backward_hook(model: Any) -> None:
    model.bert.encoder.layer[0].output.dense.register_full_backward_hook(lambda *_: None)


def _other_linear(model: Any) -> None:
    class Scaled(nn.Linear):
        def forward(self, rows: Tensor) -> Tensor:
            return 2 * super().forward(rows)

    old = model.bert.encoder.layer[0].intermediate.dense
    model.bert.encoder.layer[0].intermediate.dense = Scaled(old.in_features, old.out_features)


def _no_bias(model: Any) -> None:
    model.bert.encoder.layer[0].attention.self.value.bias = None


@pytest.mark.parametrize("change", [_hook, _backward_hook, _other_linear, _no_bias])
def test_what_kernels_cannot_train_is_left_to_torch(change: Any, trained: list[int]) -> None:
    model = classifier("full depth")
    change(model)
    loss_and_gradients(model)
    assert len(trained) == 3  # all layers but the changed one


def test_other_activations_and_pre_norm_layers_are_left_to_torch(trained: list[int]) -> None:
    loss_and_gradients(classifier(hidden_act="relu"))
    for family in ("roberta-prelayernorm", "modernbert", "t5", "mpnet"):
        dense, ids = make_model(family), make_ids()
        output = converted(dense, make_exits("full depth")).train()
        decoder = {"decoder_input_ids": ids} if dense.config.is_encoder_decoder else {}
        output(ids, **decoder)[0].sum().backward()
    assert not trained


def test_without_kernels_torch_trains(trained: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    model = classifier()
    _, expected = loss_and_gradients(model)
    assert trained
    trained.clear()
    monkeypatch.setattr(native, "library", lambda: None)
    _, found = loss_and_gradients(model)
    assert not trained
    assert furthest(found, expected) <= 1e-4
