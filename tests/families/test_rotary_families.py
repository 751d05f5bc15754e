"""NomicBERT, GTE and EuroBERT: what their configs change equals transformers, and missing rotation is caught."""

from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification

import hashee
from architectures import FAMILIES, converted, make_exits, make_ids, make_mask, make_model, padded
from hashee.engine.attention import PositionTerms
from hashee.engine.reference import run_reference
from hashee.families.adapters import ADAPTERS

TOLERANCE = 1e-5
ROTARY = [family for family in ("eurobert", "gte", "modernbert", "nomic_bert") if family in FAMILIES]
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    # All heads of queries share one of keys and values; each has its own; projections with biases.
    ("eurobert", {"num_key_value_heads": 1}),
    ("eurobert", {"num_key_value_heads": 4, "head_dim": None}),
    ("eurobert", {"attention_bias": True, "mlp_bias": True}),
    ("gte", {"type_vocab_size": 0}),  # gte-base-en-v1.5
    ("nomic_bert", {"head_dim": 6}),
    ("nomic_bert", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1000.0}}),
]
VARIANTS = [(family, changes) for family, changes in VARIANTS if family in FAMILIES]


def distance(model: Any) -> float:
    """Return how far the engine is from the reference on texts of mixed lengths, in inference and with gradients."""
    exits, mask = make_exits("random exits"), make_mask("mixed lengths")
    inputs = {"input_ids": padded(make_ids(), mask, model.config), "attention_mask": mask}
    theirs = run_reference(model, exits, **inputs)[0]
    hashed, real = converted(model, exits), mask.bool() if theirs.ndim == 3 else slice(None)
    with torch.inference_mode():
        fast = hashed(**inputs)[0]
    return max(float((ours - theirs)[real].detach().abs().max()) for ours in (hashed(**inputs)[0], fast))


@pytest.mark.parametrize(("family", "changes"), VARIANTS)
def test_every_variant_equals_transformers(family: str, changes: dict[str, Any]) -> None:
    assert distance(make_model(family, **changes)) <= TOLERANCE


@pytest.mark.parametrize(("pooling", "one_row"), [("bos", True), ("mean", False), ("late", False)])
def test_the_classifier_of_eurobert_reads_the_rows_that_its_config_names(pooling: str, one_row: bool) -> None:
    model = make_model("eurobert", AutoModelForSequenceClassification, classifier_pooling=pooling)
    assert distance(model) <= TOLERANCE
    hashed = converted(model, make_exits("random exits"))
    assert hashed.hashed_encoder.reads_first_row is one_row
    expected = hashee.count_flops(model.config, make_ids(), hashed.exit_table, reads_first_row=one_row)
    assert hashee.count_flops(hashed, make_ids()).executed_macs == expected.executed_macs


def test_shared_keys_and_values_cost_less() -> None:
    # 24 columns of states, 32 of queries; keys and values of two heads of 8 columns instead of four.
    few, many = (
        hashee.count_flops(make_model("eurobert", num_key_value_heads=heads).config, make_ids(1)) for heads in (2, 4)
    )
    assert many.paper_macs - few.paper_macs == 4 * 2 * 12 * 24 * 16


@pytest.mark.parametrize("family", ROTARY)
def test_missing_rotation_is_caught(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = ADAPTERS[family].position_terms

    def without(*arguments: Any) -> dict[str, PositionTerms]:
        return dict.fromkeys(right(*arguments), PositionTerms())

    monkeypatch.setattr(ADAPTERS[family], "position_terms", without, raising=False)
    assert distance(make_model(family)) > 100 * TOLERANCE
