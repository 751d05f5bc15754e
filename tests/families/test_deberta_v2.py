"""DeBERTa-v2 and v3: every variant of the scores with relative positions equals transformers', and is counted."""

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForMaskedLM, DebertaV2Config

import hashee
import hashee.engine.linear
import hashee.engine.native
from architectures import LAYERS, VOCABULARY, converted, make_exits, make_ids, make_mask, make_model, padded
from hashee.engine.attention import PositionTerms
from hashee.engine.block import Block
from hashee.engine.reference import run_reference
from hashee.engine.relative_attention import DistanceProjections
from hashee.errors import UnsupportedModel
from hashee.families.adapters import ADAPTERS

TOLERANCE = 1e-5
ADAPTER = ADAPTERS["deberta-v2"]
LONG = 30
VARIANTS: dict[str, dict[str, Any]] = {
    # As microsoft/deberta-v3 has it.
    "v3": {"share_att_key": True, "position_biased_input": False, "type_vocab_size": 0, "embedding_size": 24},
    "content to position": {"pos_att_type": ["c2p"]},
    "position to content": {"pos_att_type": ["p2c"]},
    "position to content, shared": {"pos_att_type": "p2c", "share_att_key": True},
    "every distance on its own": {"position_buckets": -1},
    "few distances": {"position_buckets": -1, "max_relative_positions": 5},
    "buckets of few distances": {"position_buckets": 8, "max_relative_positions": 12},
    "embeddings of distances without a norm": {"norm_rel_ebd": "none"},
    "no terms": {"pos_att_type": None},
    "no relative attention": {"relative_attention": False},
}
each_variant = pytest.mark.parametrize("variant", VARIANTS)


def run(model: Any, exits: Tensor, mask_kind: str = "mixed lengths") -> tuple[Tensor, Tensor]:
    """Return the states of real tokens of long texts from the engine and from the reference."""
    mask = make_mask(mask_kind, length=LONG)
    inputs = {"input_ids": padded(make_ids(length=LONG), mask, model.config), "attention_mask": mask}
    ours = converted(model, exits)(**inputs).last_hidden_state[mask.bool()]
    return ours, run_reference(model, exits, **inputs).last_hidden_state[mask.bool()]


def distance(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).detach().abs().max())


@each_variant
@pytest.mark.parametrize("mask_kind", ["mixed lengths", "left", "holes"])
def test_every_variant_equals_transformers(variant: str, mask_kind: str) -> None:
    model, exits = make_model("deberta-v2", **VARIANTS[variant]), make_exits("exits at 0")
    ours, theirs = run(model, exits, mask_kind)
    assert distance(ours, theirs) <= TOLERANCE
    with torch.inference_mode():
        assert distance(run(model, exits, mask_kind)[0], theirs) <= TOLERANCE
    weights = torch.randn(ours.shape, generator=torch.Generator().manual_seed(3))
    of_theirs, of_ours = (
        torch.autograd.grad((states * weights).sum(), list(model.parameters()), allow_unused=True)
        for states in (theirs, ours)
    )
    assert [gradient is None for gradient in of_ours] == [gradient is None for gradient in of_theirs]
    largest = max(float(gradient.abs().max()) for gradient in of_theirs if gradient is not None)
    for mine, other in zip(of_ours, of_theirs, strict=True):
        if other is not None:
            assert distance(mine, other) <= 1e-4 * max(float(other.abs().max()), 1e-2 * largest)


@each_variant
@pytest.mark.parametrize("length", [1, 12, LONG])
def test_products_with_positions_are_counted(variant: str, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Torch does not count the products of our kernels.
    monkeypatch.setattr(hashee.engine.native, "library", lambda: None)
    model, exits = make_model("deberta-v2", **VARIANTS[variant]), make_exits("random exits")
    hashed, ids = converted(model, exits), make_ids(1, length)
    with FlopCounterMode(display=False) as around:
        hashed.embeddings(ids)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        hashed(ids)
    count = hashee.count_flops(hashed, ids)
    assert counter.get_total_flops() - around.get_total_flops() == 2 * sum(layer.matmul_macs for layer in count.layers)
    if model.config.relative_attention and model.config.pos_att_type:
        # The absorbed form has no keys to multiply with distances, so it is never run, nor counted. Inference keeps the
        # projections of distances from text to text.
        with torch.no_grad():
            hashed(ids)
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
            hashed(ids)
        rest = sum(layer.norms + layer.softmax for layer in count.layers)
        assert counter.get_total_flops() - around.get_total_flops() == 2 * (count.executed_macs - rest)
        assert count.executed_macs < count.paper_macs
        bert = hashee.count_flops(make_model("bert").config, ids, hashed.exit_table)
        assert count.paper_macs > bert.paper_macs


def test_only_distances_that_occur_are_projected() -> None:
    # 512 embeddings, of which a text of 20 tokens has the distances from -19 to 19.
    config = DebertaV2Config(relative_attention=True, pos_att_type=["c2p", "p2c"], position_buckets=256)
    distances = ADAPTER.shape(config).distances
    assert distances is not None
    lengths = torch.tensor([0, 1, 20, 128, 512]).numpy()
    assert distances.distances(lengths).tolist() == [0, 1, 39, 255, 511]


@pytest.mark.parametrize("changed", ["rel_embeddings", "LayerNorm", "layer.1.attention.self.query_proj"])
def test_kept_projections_follow_the_weights(changed: str) -> None:
    model, exits, ids = make_model("deberta-v2", share_att_key=True), make_exits("random exits"), make_ids()
    hashed = converted(model, exits)
    with torch.inference_mode():
        before = hashed(ids).last_hidden_state
        assert len(hashed.distance_cache.projected) == 2 * LAYERS
    # Written through `.data`, so that no counter of torch's rises.
    module = model.encoder.get_submodule(changed)
    module.weight.data.add_(torch.randn_like(module.weight))
    with torch.inference_mode():
        after = hashed(ids).last_hidden_state
        expected = run_reference(model, exits, input_ids=ids).last_hidden_state
    assert distance(after, expected) <= TOLERANCE < 1e-3 < distance(after, before)
    assert not copy.deepcopy(hashed).distance_cache.projected
    hashed.train()
    assert not hashed.distance_cache.projected


def test_the_convolution_of_v2_xlarge_is_refused() -> None:
    model = make_model("deberta-v2", conv_kernel_size=3, conv_act="gelu")
    with pytest.raises(UnsupportedModel, match="convolution after the first layer"):
        converted(model, make_exits("random exits"))


@pytest.mark.parametrize("legacy", [True, False])
def test_both_masked_lm_heads_equal_transformers(legacy: bool) -> None:
    # The newer head multiplies states with the word embeddings, so these must be as wide.
    model = make_model("deberta-v2", AutoModelForMaskedLM, legacy=legacy, embedding_size=24)
    ids, exits = make_ids(), make_exits("random exits")
    assert distance(converted(model, exits)(ids).logits, run_reference(model, exits, input_ids=ids).logits) <= TOLERANCE


# --- what is wrong is caught ---


def swapped_terms(block: Block) -> Block:
    part = block.attention.distances
    assert part is not None
    return dataclasses.replace(
        block, attention=dataclasses.replace(block.attention, distances=DistanceProjections(part.query, part.key))
    )


def one_term(block: Block) -> Block:
    part = block.attention.distances
    assert part is not None
    return dataclasses.replace(
        block, attention=dataclasses.replace(block.attention, distances=DistanceProjections(part.key, None))
    )


def scale_of_bert(block: Block) -> Block:
    return dataclasses.replace(block, attention=dataclasses.replace(block.attention, scale=8**-0.5))


@pytest.mark.parametrize("mutate", [swapped_terms, one_term, scale_of_bert])
def test_wrong_layers_are_caught(mutate: Callable[[Block], Block], monkeypatch: pytest.MonkeyPatch) -> None:
    right = ADAPTER.blocks
    monkeypatch.setattr(ADAPTER, "blocks", lambda encoder: map(mutate, right(encoder)), raising=False)
    ours, theirs = run(make_model("deberta-v2"), make_exits("random exits"))
    assert distance(ours, theirs) > 100 * TOLERANCE


def key_to_query(index: Tensor) -> Tensor:
    return index.transpose(1, 2)


def one_off(index: Tensor) -> Tensor:
    return (index + 1).clamp(max=int(index.max()))


@pytest.mark.parametrize("mutate", [key_to_query, one_off])
def test_wrong_distances_are_caught(mutate: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    right = ADAPTER.position_terms

    def wrong(*arguments: Any) -> dict[str, PositionTerms]:
        relative = right(*arguments)[""].relative
        assert relative is not None
        return {"": PositionTerms(relative=dataclasses.replace(relative, index=mutate(relative.index)))}

    monkeypatch.setattr(ADAPTER, "position_terms", wrong, raising=False)
    model = make_model("deberta-v2")
    ours, theirs = run(model, torch.full((VOCABULARY,), LAYERS))
    assert distance(ours, theirs) > 100 * TOLERANCE
