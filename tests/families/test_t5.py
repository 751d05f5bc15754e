"""What is particular about T5: both kinds of feed-forward, and how outputs are scaled, survive conversion."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM

from architectures import converted, make_exits, make_ids, make_mask, make_model, padded
from hashee.engine.reference import run_reference

TOLERANCE = 1e-5


@pytest.mark.parametrize("feed_forward", ["relu", "gated-gelu", "gated-silu"])
def test_every_feed_forward_equals_the_reference(feed_forward: str) -> None:
    model = make_model("t5", AutoModelForSeq2SeqLM, feed_forward_proj=feed_forward)
    mask, exits = make_mask("mixed lengths"), make_exits("random exits")
    ids = padded(make_ids(), mask, model.config)
    inputs = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": make_ids(length=7, seed=4)}
    with torch.no_grad():
        ours = converted(model, exits)(**inputs).logits
        assert (ours - run_reference(model, exits, **inputs).logits).abs().max() <= TOLERANCE
        assert (ours - model(**inputs).logits).abs().max() > 1e-3


@pytest.mark.parametrize("tied", [True, False])
def test_scaled_and_unscaled_outputs_come_back(tied: bool, tmp_path: Path) -> None:
    # Flan-T5's config says that nothing is tied, by which transformers knows that outputs are not scaled.
    model = make_model("t5", AutoModelForSeq2SeqLM, tie_word_embeddings=tied)
    assert model.config.scale_decoder_outputs is tied
    with_exits = converted(model, make_exits("full depth"))
    with_exits.save_pretrained(tmp_path)
    inputs = {"input_ids": make_ids(), "decoder_input_ids": make_ids(length=7, seed=4)}
    with torch.no_grad():
        expected = model(**inputs).logits
        for candidate in (with_exits, AutoModelForSeq2SeqLM.from_pretrained(tmp_path)):
            assert (candidate(**inputs).logits - expected).abs().max() <= TOLERANCE
