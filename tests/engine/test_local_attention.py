"""Local attention equals the reference, at a cost per token that does not grow with the length of the text."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForMultipleChoice, AutoModelForSequenceClassification

import hashee
from architectures import FAMILIES, LAYERS, converted, encoder_of, make_exits, make_ids, make_mask, make_model, padded
from hashee.cost.macs import band_length, block_length
from hashee.engine import native
from hashee.engine.local_attention import Bands, within_window
from hashee.engine.plan import make_plan
from hashee.engine.reference import run_reference
from hashee.families.adapters import ADAPTERS

LENGTH = 40
WINDOW = 4
TOLERANCE = 1e-5
LONG_TOLERANCE = 2e-5
"""Rounding adds up over the sums of longer texts; a window that is off by one is a hundred times further away."""


def long_inputs(mask_kind: str, config: Any, batch: int = 6) -> dict[str, Tensor]:
    mask = make_mask(mask_kind, batch, LENGTH)
    return {"input_ids": padded(make_ids(batch, LENGTH), mask, config), "attention_mask": mask}


@pytest.mark.parametrize("mask_kind", ["mixed lengths", "left", "holes"])
@pytest.mark.parametrize("exits_kind", ["full depth", "random exits", "exits at 0"])
@pytest.mark.parametrize("local_attention", [1, 8, 20])
def test_texts_longer_than_the_window_equal_the_reference(
    exits_kind: str, mask_kind: str, local_attention: int
) -> None:
    model, exits = make_model("modernbert", local_attention=local_attention), make_exits(exits_kind)
    inputs, hashed = long_inputs(mask_kind, model.config), converted(model, exits)
    mask = inputs["attention_mask"].bool()
    theirs = run_reference(model, exits, **inputs).last_hidden_state[mask]
    with torch.inference_mode():
        assert float((hashed(**inputs).last_hidden_state[mask] - theirs).abs().max()) <= LONG_TOLERANCE
    weights = torch.randn(theirs.shape, generator=torch.Generator().manual_seed(3))
    (theirs * weights).sum().backward()
    expected = {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}
    model.zero_grad()
    ours = hashed(**inputs).last_hidden_state[mask]
    assert float((ours - theirs).detach().abs().max()) <= LONG_TOLERANCE
    (ours * weights).sum().backward()
    for name, weight in model.named_parameters():
        if name in expected:
            assert weight.grad is not None
            size = 1 + float(expected[name].abs().max())
            assert float((weight.grad - expected[name]).abs().max()) <= 1e-4 * size, name


def test_transformers_other_kernels_agree() -> None:
    model = make_model("modernbert")
    inputs, hashed = long_inputs("mixed lengths", model.config), converted(model, make_exits("full depth"))
    model.set_attn_implementation("sdpa")
    mask = inputs["attention_mask"].bool()
    with torch.inference_mode():
        ours, theirs = (run(**inputs).last_hidden_state[mask] for run in (hashed, model))
    assert float((ours - theirs).abs().max()) <= TOLERANCE


@pytest.mark.parametrize("mutant", ["no window", "one more", "one less"])
def test_wrong_windows_are_caught(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {"no window": 10**6, "one more": WINDOW + 1, "one less": WINDOW - 1}[mutant]
    monkeypatch.setattr("hashee.engine.block.within_window", lambda layer, window: within_window(layer, wrong))
    model, exits = make_model("modernbert"), make_exits("random exits")
    inputs = long_inputs("mixed lengths", model.config)
    mask = inputs["attention_mask"].bool()
    theirs = run_reference(model, exits, **inputs).last_hidden_state[mask]
    assert float((converted(model, exits)(**inputs).last_hidden_state[mask] - theirs).detach().abs().max()) > 1e-3


@pytest.mark.parametrize("mask_kind", ["mixed lengths", "left", "holes"])
def test_every_query_sees_its_window_once(mask_kind: str) -> None:
    mask = make_mask(mask_kind, 6, LENGTH).bool()
    plan = make_plan(make_exits("random exits")[make_ids(6, LENGTH)], mask, LAYERS)
    bands = within_window(plan.layer(2), WINDOW)
    assert isinstance(bands, Bands)
    seen: list[list[int]] = []
    for group in bands.groups:
        assert group.visible is not None
        assert group.key_slots.shape[1] <= block_length(WINDOW) + 2 * WINDOW
        for slots, visible in zip(group.key_slots, group.visible, strict=True):
            seen += [sorted(slots[keys].tolist()) for keys in visible]
    text, column = plan.rows // LENGTH, plan.rows % LENGTH
    near = (text[:, None] == text) & ((column[:, None] - column).abs() <= WINDOW)
    for row, slot in enumerate(bands.slot_of_row.tolist()):
        assert seen[slot] == near[row].nonzero().flatten().tolist()


@pytest.mark.parametrize("exits_kind", ["full depth", "random exits", "exits at 0"])
@pytest.mark.parametrize("grad", [False, True])
def test_long_texts_are_counted_as_torch_counts_them(
    exits_kind: str, grad: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Torch counts empty slots and does not know the kernels for few rows.
    monkeypatch.setattr(hashee.engine.plan, "SMALLEST_GROUP", 1)
    monkeypatch.setattr(hashee.engine.plan, "MIN_SAVING", 0)
    monkeypatch.setattr(native, "library", lambda: None)
    model, ids = make_model("modernbert"), make_ids(1, LENGTH)
    hashed = converted(model, make_exits(exits_kind))
    count = hashee.count_flops(hashed, ids)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.set_grad_enabled(grad):
        hashed(ids)
    products = sum(layer.matmul_macs for layer in count.layers)
    assert counter.get_total_flops() == 2 * products
    # There is no absorbed form under rotary positions.
    assert count.executed_macs == count.paper_macs


def test_a_local_layer_costs_the_same_for_each_token_of_any_long_text() -> None:
    config = make_model("modernbert").config
    one, two = (hashee.count_flops(config, [[5] * length]) for length in (100, 200))
    assert [b.attention / a.attention for a, b in zip(one.layers, two.layers, strict=True)] == [4, 2, 2, 4]
    assert band_length(10, WINDOW) == 10
    assert two.full_depth_macs == two.paper_macs


@pytest.mark.parametrize("family", FAMILIES)
def test_the_parts_of_a_layer_report_what_is_counted_from_the_config(family: str) -> None:
    model = make_model(family)
    exits, ids = make_exits("random exits"), make_ids(1)
    encoder = encoder_of(converted(model, exits))
    blocks, reported = list(ADAPTERS[family].blocks(encoder)), [0] * LAYERS
    for block in blocks:
        active = int((exits[ids] >= block.layer).sum())
        tokens = ids.numel() if active else 0
        # With two buckets on either side of the middle, of four, a dozen tokens have seven ranges of distances.
        distances = 7 if active and block.attention.distances is not None else 0
        reported[block.layer - 1] += block.attention.matmul_macs(tokens, active, active * tokens, distances)
        reported[block.layer - 1] += block.feed_forward.matmul_macs(active)
    table = hashee.ExitTable.from_tensor(exits, num_layers=LAYERS)
    assert reported == [layer.matmul_macs for layer in hashee.count_flops(model.config, ids, table).layers]


# --- heads ---


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_classifiers_read_the_rows_that_their_config_names(pooling: str) -> None:
    model = make_model("modernbert", AutoModelForSequenceClassification, classifier_pooling=pooling)
    exits, inputs = make_exits("random exits"), long_inputs("mixed lengths", model.config)
    hashed = converted(model, exits)
    assert hashed.hashed_encoder.reads_first_row is (pooling == "cls")
    first, every = (
        hashee.count_flops(model.config, [[5] * 30], hashed.exit_table, reads_first_row=first)
        for first in (True, False)
    )
    expected = first if pooling == "cls" else every
    assert hashee.count_flops(hashed, [[5] * 30]).executed_macs == expected.executed_macs
    with torch.inference_mode():
        theirs = run_reference(model, exits, **inputs).logits
        assert float((hashed(**inputs).logits - theirs).abs().max()) <= TOLERANCE


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("mask_kind", ["mixed lengths", "left"])
def test_multiple_choice_finds_the_first_token_after_padding_too(pooling: str, mask_kind: str) -> None:
    model = make_model("modernbert", AutoModelForMultipleChoice, classifier_pooling=pooling)
    exits, inputs = make_exits("full depth"), long_inputs(mask_kind, model.config)
    inputs = {name: values.view(3, 2, LENGTH) for name, values in inputs.items()}
    with torch.inference_mode():
        theirs = model(**inputs).logits
        assert float((converted(model, exits)(**inputs).logits - theirs).abs().max()) <= TOLERANCE


def test_the_first_layers_are_kept_with_their_kinds(tmp_path: Any) -> None:
    model = make_model("modernbert")
    hashed = converted(model, make_exits("random exits", layers=2), layers=2)
    assert hashed.config.layer_types == model.config.layer_types[:2] == ["full_attention", "sliding_attention"]
    hashed.save_pretrained(tmp_path)
    loaded = type(hashed).from_pretrained(tmp_path)
    with torch.inference_mode():
        assert torch.equal(loaded(make_ids(2, LENGTH))[0], hashed(make_ids(2, LENGTH))[0])
