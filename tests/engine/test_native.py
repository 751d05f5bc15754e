"""The compiled kernels compute what torch computes, and everything runs without them too."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from architectures import converted, make_exits, make_ids, make_model
from hashee.engine import native
from hashee.engine.attention import KeyValueWeights, attend_absorbed
from hashee.engine.plan import make_plan
from which_kernels import needs_kernels, without_one_text


@needs_kernels
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 7, 50, 100, 401])
@pytest.mark.parametrize(("width", "features"), [(8, 1), (24, 5), (1024, 4), (1032, 7), (3072, 66)])
def test_linear_equals_torch(rows: int, width: int, features: int) -> None:
    torch.manual_seed(rows)
    states, weight, bias = torch.randn(rows, width + 8)[:, :width], torch.randn(features, width), torch.randn(features)
    assert torch.allclose(native.linear(states, weight, bias), F.linear(states, weight, bias), atol=1e-3, rtol=1e-5)
    assert torch.allclose(native.linear(states, weight, None), F.linear(states, weight), atol=1e-3, rtol=1e-5)


@needs_kernels
@pytest.mark.parametrize("rows", [1, 3, 700])
def test_gelu_equals_the_exact_one(rows: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    states = torch.cat([torch.randn(rows, 24, generator=generator) * size for size in (1e-6, 1.0, 9.0, 1e6)])
    exact = F.gelu(states.double())
    found = native.gelu_(states.clone())
    assert bool(((found - exact).abs() <= 5e-7 * (1 + exact.abs())).all())
    bias = torch.randn(24, generator=generator)
    assert torch.equal(native.gelu_(states.clone(), bias), native.gelu_(states + bias))


def post_attention_case(rows: int, width: int, inner: int) -> tuple[Any, ...]:
    """Return the arguments of `native.post_attention`."""
    generator = torch.Generator().manual_seed(rows)
    context, states = torch.randn(2, rows, width + 8, generator=generator)[:, :, :width]
    shapes = ((width, width), (width,), (inner, width), (width, inner), (width,))
    weights = [torch.randn(shape, generator=generator) for shape in shapes]
    biases = [torch.randn(len(weight), generator=generator) for weight in weights]
    return context, states, [tensor for pair in zip(weights, biases, strict=True) for tensor in pair], (1e-12, 1e-5)


@needs_kernels
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 50, 200])
@pytest.mark.parametrize(("width", "inner"), [(8, 8), (24, 40), (384, 1536)])
def test_post_attention_equals_torch(rows: int, width: int, inner: int) -> None:
    context, states, weights, epsilons = post_attention_case(rows, width, inner)
    exact = [weight.double() for weight in weights]
    attended = F.linear(context.double(), *exact[0:2]) + states
    attended = F.layer_norm(attended, (width,), *exact[2:4], epsilons[0])
    updated = F.linear(F.gelu(F.linear(attended, *exact[4:6])), *exact[6:8]) + attended
    expected = F.layer_norm(updated, (width,), *exact[8:10], epsilons[1])
    found = native.post_attention(context, states, weights, epsilons)
    assert torch.allclose(found.double(), expected, atol=1e-4)


def attention_case(seed: int, batch: int, length: int, heads: int, size: int) -> dict[str, Any]:
    """Return the arguments of `attend_absorbed` for random sequences, some of which have no query left."""
    generator = torch.Generator().manual_seed(seed)
    width = heads * size
    exits = torch.randint(0, 3, (batch, length), generator=generator)
    exits[0, 0] = 2
    mask = torch.rand(batch, length, generator=generator) < 0.8
    mask[:, 0] = True
    plan = make_plan(exits, mask, 2)
    layer = plan.layer(2)
    query = torch.randn(layer.active, width, generator=generator)
    states = torch.randn(plan.tokens, width, generator=generator)
    key, value = torch.randn(2, width, width, generator=generator) * width**-0.5
    weights = KeyValueWeights(key, value, torch.randn(width, generator=generator))
    return {"query": query, "states": states, "weights": weights, "layer": layer, "heads": heads, "scale": size**-0.5}


@needs_kernels
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    batch=st.integers(1, 9),
    length=st.integers(1, 40),
    heads=st.sampled_from([1, 2, 3, 12]),
    size=st.sampled_from([8, 16, 32]),
)
def test_attention_equals_torch(seed: int, batch: int, length: int, heads: int, size: int) -> None:
    case = attention_case(seed, batch, length, heads, size)
    ours = attend_absorbed(**case)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "library", lambda: None)
        theirs = attend_absorbed(**case)
    assert torch.allclose(ours, theirs, atol=1e-5)


@needs_kernels
def test_outputs_do_not_depend_on_the_number_of_threads() -> None:
    case, other, before = attention_case(3, 6, 30, 12, 8), post_attention_case(7, 24, 40), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone, other_alone = attend_absorbed(**case), native.post_attention(*other)
        torch.set_num_threads(3)
        assert torch.equal(attend_absorbed(**case), alone)
        assert torch.equal(native.post_attention(*other), other_alone)
    finally:
        torch.set_num_threads(before)


@needs_kernels
def test_nan_is_never_hidden() -> None:
    case = attention_case(4, 1, 20, 2, 8)
    case["states"][0, 0] = float("nan")
    assert attend_absorbed(**case).isnan().all()
    assert native.linear(torch.full((2, 8), float("nan")), torch.ones(3, 8), None).isnan().all()
    assert native.gelu_(torch.full((2, 8), float("nan"))).isnan().all()
    context, *others = post_attention_case(3, 24, 40)
    context[1, 0] = float("nan")
    assert native.post_attention(context, *others).isnan().all(1).tolist() == [False, True, False]


@needs_kernels
def test_inference_uses_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    without_one_text(monkeypatch)
    called: set[str] = set()
    kernels = (
        "linear",
        "gelu_",
        "post_attention",
        "attend_absorbed",
        "layers_",
    )
    for name in kernels:
        kernel = getattr(native, name)
        monkeypatch.setattr(native, name, lambda *a, k=kernel, n=name, **o: called.add(n) or k(*a, **o))
    model = converted(make_model("bert"), make_exits("random exits"))
    with torch.inference_mode():
        model(make_ids(batch=1, length=30))
        assert called == {"post_attention", "layers_"}
        model(make_ids(batch=1, length=30), output_hidden_states=True)
        assert called == {"linear", "post_attention", "attend_absorbed", "layers_"}
        pre_norm = converted(make_model("roberta-prelayernorm"), make_exits("random exits"))
        pre_norm(make_ids(batch=1, length=30))
    assert called == set(kernels)


@needs_kernels
@pytest.mark.parametrize("name", ["attention.output.dense", "attention.output.LayerNorm", "intermediate.dense"])
def test_hooks_see_what_they_would_see_without_kernels(name: str) -> None:
    model = converted(make_model("bert"), make_exits("full depth"))
    seen: list[torch.Tensor] = []
    ids = make_ids(batch=1, length=9)
    with torch.inference_mode():
        expected = model(ids)[0]
        module = model.hashed_encoder.encoder.layer[0].get_submodule(name)
        module.register_forward_hook(lambda module, inputs, output: seen.append(output))
        found = model(ids)[0]
    assert [len(rows) for rows in seen] == [9]
    assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("obstacle", ["switched off", "no compiler", "broken compiler"])
def test_without_kernels_everything_runs_in_torch(
    obstacle: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model, ids = converted(make_model("bert"), make_exits("random exits")), make_ids(length=30)
    with torch.inference_mode():
        expected = model(ids).last_hidden_state
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if obstacle == "switched off":
        monkeypatch.setenv("HASHEE_NATIVE", "0")
    elif obstacle == "no compiler":
        monkeypatch.setenv("PATH", "")
        monkeypatch.delenv("CC", raising=False)
    else:
        monkeypatch.setenv("CC", "false")
    native.kernels.cache_clear()
    try:
        assert native.library() is None
        with torch.inference_mode():
            assert torch.allclose(model(ids).last_hidden_state, expected, atol=1e-5)
    finally:
        native.kernels.cache_clear()
