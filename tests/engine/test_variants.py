"""Every variant of the kernels that this processor can run gives the reference's outputs; others are refused."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from architectures import converted, make_exits, make_ids, make_mask, make_model, padded
from hashee.engine import native
from hashee.engine.int8 import Int8Linear
from hashee.engine.native import int8, variants
from hashee.engine.reference import run_reference
from hashee.errors import UnsupportedOption
from hashee.hf.quantize import quantize
from which_kernels import ABLE, needs_kernels, wide_model


@needs_kernels
@pytest.mark.parametrize("family", ["bert", "distilbert", "mpnet", "modernbert"])
@pytest.mark.parametrize(("batch", "length"), [(1, 11), (5, 30)])
def test_models_equal_the_reference(variant: str, family: str, batch: int, length: int) -> None:
    assert native.kernels().variant == variant
    dense, exits, ids = make_model(family), make_exits("random exits"), make_ids(batch, length)
    with torch.inference_mode():
        found = converted(dense, exits)(ids).last_hidden_state
        expected = run_reference(dense, exits, input_ids=ids).last_hidden_state
    assert float((found - expected).abs().max()) <= 1e-5


@needs_kernels
def test_padding_is_ignored(variant: str) -> None:
    dense, exits, mask = make_model("bert"), make_exits("exits at 0"), make_mask("mixed lengths")
    ids = padded(make_ids(), mask, dense.config)
    with torch.inference_mode():
        found = converted(dense, exits)(ids, mask).last_hidden_state
        expected = run_reference(dense, exits, input_ids=ids, attention_mask=mask).last_hidden_state
    assert float((found - expected)[mask == 1].abs().max()) <= 1e-5


@needs_kernels
@pytest.mark.parametrize("rows", [1, 7, 100, 401])
@pytest.mark.parametrize(("width", "features"), [(8, 5), (24, 66), (1032, 130)])
def test_products_equal_torch(variant: str, rows: int, width: int, features: int) -> None:
    torch.manual_seed(rows)
    states, weight, bias = torch.randn(rows, width + 8)[:, :width], torch.randn(features, width), torch.randn(features)
    assert torch.allclose(native.linear(states, weight, bias), F.linear(states, weight, bias), atol=1e-3, rtol=1e-5)


@needs_kernels
@pytest.mark.parametrize("rows", [1, 5, 13, 100])
def test_int8_products_are_exact_sums_of_what_was_rounded(variant: str, rows: int) -> None:
    torch.manual_seed(rows)
    linear = nn.Linear(1024, 48).requires_grad_(False)
    layer, states, steps = Int8Linear(linear), 5 * torch.randn(rows, 1024) + 1, int8.steps()
    assert steps == (255 if variant == "avx512_vnni" else 127)
    least = states.amin(1, keepdim=True)
    reach = states.amax(1, keepdim=True) - least
    rounded = (((states - least) / reach * steps).round() / steps * reach + least).double()
    weight = layer._integers().double() * layer.weight_step.double()[:, None]
    expected = rounded @ weight.T + linear.bias.double()
    # A state on the edge between two steps may fall to either side.
    assert float((layer(states) - expected).norm() / expected.norm()) <= 5e-4


@needs_kernels
@pytest.mark.parametrize(("batch", "length"), [(1, 9), (6, 40)])
def test_int8_models_stay_close_to_float32(variant: str, batch: int, length: int) -> None:
    model, ids = wide_model(), make_ids(batch, length)
    with torch.inference_mode():
        expected, found = model(ids)[0], quantize(model)(ids)[0]
    assert 0 < float((found - expected).norm() / expected.norm()) <= 0.03


def test_kernels_that_cannot_run_here_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    native.kernels.cache_clear()
    monkeypatch.setenv(variants.SWITCH, "sse9")
    with pytest.raises(UnsupportedOption, match=r"HASHEE_KERNELS=sse9 is unknown; choose avx512_vnni.* or torch"):
        native.kernels()
    monkeypatch.setattr(variants, "has_instructions", lambda name: name in ("avx2", "fma"))
    monkeypatch.setenv(variants.SWITCH, "avx512")
    lacking = r"(this processor lacks avx512f.*|it is for x86_64.*); choose .*torch, or unset it"
    with pytest.raises(UnsupportedOption, match=lacking):
        native.kernels()
    native.kernels.cache_clear()


def test_torch_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ((variants.SWITCH, "torch"), ("HASHEE_NATIVE", "0")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            native.kernels.cache_clear()
            assert native.library() is None and f"{name}={value}" in native.kernels().reason
    native.kernels.cache_clear()


@needs_kernels
def test_a_compiler_that_lacks_an_instruction_set_compiles_for_the_next(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    if len(ABLE) < 2:
        pytest.skip("this processor has one variant only")
    first = next(variant for variant in variants.VARIANTS if variant.name == ABLE[0])
    compiler = tmp_path / "compiler"
    refused = (set(first.flags) - set(next(v for v in variants.VARIANTS if v.name == ABLE[1]).flags)).pop()
    compiler.write_text(f'#!/bin/sh\ncase "$*" in *{refused}*) exit 1;; esac\nexec gcc -O0 "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    native.kernels.cache_clear()
    try:
        assert native.kernels().variant == ABLE[1]
        assert "failed with 1" in native.kernels().notes[0]
    finally:
        native.kernels.cache_clear()
