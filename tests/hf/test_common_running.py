"""Converted models run as transformers' own models do: autocast, tuples, gradients, checkpointing, compiling."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers

from architectures import FAMILIES, LAYERS, converted, make_exits, make_ids, make_model, targets
from common_models import ENCODERS, EXITS, SEQ2SEQ, TOLERANCE, classifier, dense_classifier, inputs_for, without_dropout


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("exits", ["random exits", "exits at 0"])
@pytest.mark.parametrize("family", FAMILIES)
def test_inference_under_autocast(family: str, exits: str, dtype: torch.dtype) -> None:
    model = make_model(family)
    # Few active tokens among many: the absorbed form of attention, in which few queries read many states.
    table = make_exits(exits).clamp(max=1)
    table[7] = LAYERS
    ids = make_ids(batch=3, length=30)
    ids[:, 0] = 7
    with_exits, inputs = converted(model, table), {"input_ids": ids, **targets(model, ids)}
    states = "encoder_last_hidden_state" if family in SEQ2SEQ else "last_hidden_state"
    from hashee.engine.reference import run_reference

    with torch.no_grad():
        exact = run_reference(model, table, **inputs)[states]
        with torch.autocast("cpu", dtype=dtype):
            theirs = run_reference(model, table, **inputs)[states]
            ours = with_exits(**inputs)[states]
    assert ours.isfinite().all()
    # As close to the exact states as transformers is in that precision.
    assert (ours.float() - exact).abs().max() <= 3 * (theirs.float() - exact).abs().max() + 1e-3


@pytest.mark.parametrize("family", FAMILIES)
def test_tuples_and_dictionaries_say_the_same(family: str) -> None:
    model = classifier(family)
    with torch.no_grad():
        for options in ({}, {"output_hidden_states": True}):
            named = model(**inputs_for(family), **options)
            plain = model(**inputs_for(family), **options, return_dict=False)
            flat = [value for value in named.to_tuple() if not isinstance(value, transformers.Cache)]
            plain = [value for value in plain if not isinstance(value, transformers.Cache)]
            assert len(flat) == len(plain)
            for one, other in zip(flat, plain, strict=True):
                for left, right in zip(*[x if isinstance(x, tuple) else (x,) for x in (one, other)], strict=True):
                    assert torch.equal(left.nan_to_num(), right.nan_to_num())


@pytest.mark.parametrize("family", ENCODERS)
def test_hidden_states_have_gradients(family: str) -> None:
    model = converted(make_model(family), EXITS).train()
    output = model(make_ids(), output_hidden_states=True)
    for state in output.hidden_states:
        state.retain_grad()
    output.last_hidden_state.square().sum().backward()
    assert all(state.grad is not None and state.grad.abs().max() > 0 for state in output.hidden_states)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_parameter_that_matters_has_a_gradient(family: str) -> None:
    def trained(model: Any) -> set[str]:
        model.train()(**inputs_for(family)).logits.square().sum().backward()
        return {name for name, parameter in model.named_parameters() if parameter.grad is not None}

    dense = dense_classifier(family, **without_dropout(family))
    model = converted(copy.deepcopy(dense), make_exits("full depth"))
    assert trained(model) == trained(dense)


@pytest.mark.parametrize("family", FAMILIES)
def test_gradient_checkpointing_by_config(family: str) -> None:
    options = without_dropout(family)
    dense = dense_classifier(family, **options)
    if not dense.supports_gradient_checkpointing:
        pytest.skip(f"transformers has no gradient checkpointing for {family}")
    plain = converted(dense, EXITS).train()
    config = copy.deepcopy(plain.config)
    config.gradient_checkpointing = True
    model = type(plain).from_pretrained(None, config=config, state_dict=plain.state_dict()).train()
    assert model.is_gradient_checkpointing
    runs = []
    encoder = model.hashed_encoder
    for layer in encoder.adapter.layers(encoder):
        layer._gradient_checkpointing_func = _counted(layer._gradient_checkpointing_func, runs)
    for each in (plain, model):
        each(**inputs_for(family)).logits.square().sum().backward()
    assert len(runs) == len(encoder.adapter.layers(encoder)), "the layers ran without checkpoints"
    for name, parameter in plain.named_parameters():
        if parameter.grad is not None:
            assert torch.allclose(parameter.grad, model.get_parameter(name).grad, atol=1e-4, rtol=1e-4), name
    model.gradient_checkpointing_disable()
    assert not model.is_gradient_checkpointing
    dense.gradient_checkpointing_enable()
    assert converted(dense, EXITS).is_gradient_checkpointing


def _counted(function: Callable[..., Any], runs: list[int]) -> Callable[..., Any]:
    def counting(*args: Any, **kwargs: Any) -> Any:
        runs.append(1)
        return function(*args, **kwargs)

    return counting


@pytest.mark.parametrize("family", FAMILIES)
def test_compiled_models_answer_alike(family: str) -> None:
    model = converted(make_model(family), EXITS)
    compiled = torch.compile(model, backend="eager")
    for seed in (0, 1):
        ids = make_ids(seed=seed)
        with torch.no_grad():
            decoded = targets(model, ids)
            assert (compiled(ids, **decoded)[0] - model(ids, **decoded)[0]).abs().max() <= TOLERANCE
    torch._dynamo.reset()


@pytest.mark.parametrize("family", FAMILIES)
def test_word_embeddings_may_be_given_beside_the_ids(family: str) -> None:
    model = converted(make_model(family), EXITS)
    ids = make_ids()
    encoder = model.hashed_encoder
    with torch.no_grad():
        # Marian scales words after it has looked them up.
        words = model.get_input_embeddings()(ids) * getattr(encoder, "embed_scale", 1.0)
        given = encoder(ids, inputs_embeds=words).last_hidden_state
        assert (given - encoder(ids).last_hidden_state).abs().max() <= TOLERANCE
