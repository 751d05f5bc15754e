"""Layers in one call give the outputs of layers one by one, and only unchanged post-norm layers run so."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hashee.engine.block
import hashee.engine.encoder
from architectures import FAMILIES, LAYERS, converted, encoder_of, make_exits, make_ids, make_model
from hashee.engine import native
from which_kernels import FUSED, needs_kernels


@contextmanager
def counted() -> Iterator[list[int]]:
    """Give a list that gets the number of layers of every call."""
    calls: list[int] = []
    layers_ = native.layers_

    def count(states: Any, layers: Any, *arguments: Any, **options: Any) -> None:
        calls.append(len(layers))
        layers_(states, layers, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "layers_", count)
        yield calls


def one_by_one(model: Any, *arguments: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch, counted() as calls:
        patch.setattr(hashee.engine.encoder, "run_layers_", lambda *arguments: False)
        output = model(*arguments)
    assert not calls
    return output


@needs_kernels
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    batch=st.integers(1, 6),
    length=st.integers(1, 30),
    shape=st.sampled_from([(1, 8), (3, 8), (2, 16), (3, 24), (12, 32)]),
    absorbs=st.booleans(),
)
def test_layers_in_one_call_equal_layers_one_by_one(
    seed: int, batch: int, length: int, shape: tuple[int, int], absorbs: bool
) -> None:
    heads, size = shape
    dense = make_model("bert", seed=seed, hidden_size=heads * size, num_attention_heads=heads)
    for parameter in dense.parameters():
        # Scores of wide models would grow so much that rounding decides which token is read.
        parameter.data *= 1 if parameter.ndim == 1 else (8 / (heads * size)) ** 0.5
    model = converted(dense, make_exits("exits at 0", seed=seed))
    ids = make_ids(batch, length, seed)
    mask = torch.rand(batch, length, generator=torch.Generator().manual_seed(seed)) < 0.8
    mask[:, 0] = True
    with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
        patch.setattr(hashee.engine.block, "absorbing_saves", lambda *numbers: 1 if absorbs else -1)
        expected = one_by_one(model, ids, mask).last_hidden_state
        with counted() as calls:
            found = model(ids, mask).last_hidden_state
    active = [int(model.exit_table.exit_layers[ids[mask]].ge(layer).sum()) for layer in range(2, LAYERS + 1)]
    assert calls == ([sum(map(bool, active))] if active[0] else [])
    assert torch.allclose(found, expected, atol=2e-5)


@needs_kernels
@pytest.mark.parametrize("family", FAMILIES)
def test_which_families_run_so(family: str) -> None:
    model = encoder_of(converted(make_model(family), make_exits("full depth")))
    with torch.inference_mode(), counted() as calls:
        model(make_ids())
    assert bool(calls) == (family in FUSED)


def hook(model: Any) -> None:
    model.hashed_encoder.encoder.layer[2].attention.self.value.register_forward_hook(lambda *arguments: None)


def other_activation(model: Any) -> None:
    model.hashed_encoder.encoder.layer[3].intermediate.intermediate_act_fn = torch.nn.ReLU()


def no_bias(model: Any) -> None:
    model.hashed_encoder.encoder.layer[1].output.dense.bias = None


def other_weights(model: Any) -> None:
    value = model.hashed_encoder.encoder.layer[1].attention.self.value
    value.weight = torch.nn.Parameter(value.weight.detach().t().contiguous().t())


def training(model: Any) -> None:
    model.config.attention_probs_dropout_prob = 0.0
    model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0


@needs_kernels
@pytest.mark.parametrize("change", [hook, other_activation, no_bias, other_weights, training, torch.nn.Module.double])
def test_changed_layers_run_one_by_one(change: Any) -> None:
    model, ids = converted(make_model("bert"), make_exits("random exits")), make_ids()
    change(model)
    with torch.inference_mode():
        expected = one_by_one(model, ids).last_hidden_state
        with counted() as calls:
            found = model(ids).last_hidden_state
    assert torch.allclose(found, expected, atol=1e-5)
    # The layers after the changed one are as they were.
    assert all(call < LAYERS - 1 for call in calls)


@needs_kernels
def test_gradients_and_states_of_layers_are_not_lost() -> None:
    model, ids = converted(make_model("bert"), make_exits("random exits")), make_ids()
    with counted() as calls:
        model(ids).last_hidden_state.sum().backward()
        with torch.inference_mode():
            states = model(ids, output_hidden_states=True).hidden_states
    assert not calls
    assert model.hashed_encoder.encoder.layer[0].output.dense.weight.grad is not None
    assert len(states) == LAYERS + 1


@needs_kernels
def test_outputs_depend_neither_on_threads_nor_on_other_sequences() -> None:
    model, before = converted(make_model("bert"), make_exits("random exits")), torch.get_num_threads()
    ids = make_ids(batch=4, length=30)
    try:
        with torch.inference_mode():
            torch.set_num_threads(1)
            alone = model(ids).last_hidden_state
            torch.set_num_threads(3)
            assert torch.equal(model(ids).last_hidden_state, alone)
    finally:
        torch.set_num_threads(before)
    with torch.inference_mode():
        embeds = model.get_input_embeddings()(ids)
        embeds[1, 2] = float("nan")
        spoilt = model(ids, inputs_embeds=embeds).last_hidden_state
    assert spoilt[1].isnan().any()
    assert torch.allclose(spoilt[[0, 2, 3]], alone[[0, 2, 3]], atol=1e-5)
