"""Layers with int8 weights run in one call as they do one by one, in the form of attention that is asked for."""

import pytest

import hashee.engine.block
import hashee.engine.encoder
from architectures import LAYERS, make_exits, make_ids
from hashee.engine import native
from hashee.engine.int8 import Int8Linear
from hashee.engine.native import int8
from hashee.hf.quantize import quantize
from which_kernels import needs_kernels, relative_error, states_of, wide_model, without_one_text


def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashee.engine.encoder, "run_layers_", lambda *arguments: False)


@needs_kernels
@pytest.mark.parametrize("absorbs", [True, False])
@pytest.mark.parametrize(("batch", "length"), [(1, 1), (1, 9), (3, 30), (12, 40)])
def test_layers_in_one_call_equal_layers_one_by_one(
    absorbs: bool, batch: int, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_one_text(monkeypatch)
    monkeypatch.setattr(hashee.engine.block, "absorbing_saves", lambda *numbers: 1 if absorbs else -1)
    model = wide_model()
    quantized, ids = quantize(model), make_ids(batch, length)
    called: list[int] = []
    layers_ = int8.layers_
    monkeypatch.setattr(int8, "layers_", lambda *a: (called.append(len(a[1])), layers_(*a))[1])
    together = states_of(quantized, input_ids=ids)
    one_by_one(monkeypatch)
    # The plain form one by one is torch's, and a state on the edge between two steps may fall to either side.
    assert relative_error(states_of(quantized, input_ids=ids), together) <= (0 if absorbs else 5e-3)
    assert len(called) == (1 if make_exits("random exits")[ids].max() > 1 else 0)
    assert relative_error(together, states_of(model, input_ids=ids)) <= 0.05


@needs_kernels
def test_kernels_equal_the_torch_path_up_to_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    model = wide_model()
    quantized, ids = quantize(model), make_ids(4, 30)
    exact, ours = states_of(model, input_ids=ids), states_of(quantized, input_ids=ids)
    monkeypatch.setattr(native, "library", lambda: None)
    theirs = states_of(quantized, input_ids=ids)
    assert relative_error(ours, exact) <= 0.03 and relative_error(theirs, exact) <= 0.04


@needs_kernels
def test_keys_and_values_are_int8_where_our_kernels_absorb_them() -> None:
    model = quantize(wide_model())
    blocks = list(model.adapter.blocks(model.hashed_encoder))
    assert [isinstance(block.attention.projections.value, Int8Linear) for block in blocks] == [False] + [True] * (
        LAYERS - 1
    )
