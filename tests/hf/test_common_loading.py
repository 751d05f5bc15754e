"""Converted models load as transformers' own models do: other heads, sizes, devices and precisions."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

import hashee
from architectures import FAMILIES, LAYERS, converted, make_ids, make_model
from common_models import EXITS, classifier, inputs_for, logits


@pytest.mark.parametrize("family", FAMILIES)
def test_from_pretrained_takes_its_first_argument_by_name(family: str, tmp_path: Path) -> None:
    model = classifier(family)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(pretrained_model_name_or_path=tmp_path)
    assert torch.equal(logits(loaded, family), logits(model, family))


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_can_be_given_instead_of_a_folder(family: str) -> None:
    model = classifier(family)
    loaded = type(model).from_pretrained(None, config=model.config, state_dict=model.state_dict())
    assert torch.equal(logits(loaded, family), logits(model, family))
    lacking = {name: value for name, value in model.state_dict().items() if not name.endswith("exit_layers")}
    with pytest.raises(hashee.CheckpointError, match="exit_layers"):
        type(model).from_pretrained(None, config=model.config, state_dict=lacking)


HEADS = (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoModelForQuestionAnswering,
)


@pytest.mark.parametrize("loaded_as", HEADS)
@pytest.mark.parametrize("saved_as", HEADS)
@pytest.mark.parametrize("family", ["albert", "bert", "distilbert", "elasticbert", "electra", "mpnet", "roberta"])
def test_a_folder_opens_under_another_head(family: str, saved_as: Any, loaded_as: Any, tmp_path: Path) -> None:
    saved = converted(make_model(family, saved_as), EXITS)
    saved.save_pretrained(tmp_path)
    loaded, info = loaded_as.from_pretrained(tmp_path, output_loading_info=True)
    assert loaded.exit_table == saved.exit_table
    ours, theirs = loaded.hashed_encoder.state_dict(), saved.hashed_encoder.state_dict()
    shared = [name for name in ours if name in theirs]
    assert len(shared) > 16
    assert all(torch.equal(ours[name], theirs[name]) for name in shared)
    # What is new is what transformers reports, and it is initialised: small, finite, biases zero.
    for name in info["missing_keys"]:
        weight = loaded.get_parameter(name)
        assert weight.isfinite().all() and weight.abs().max() <= 1.0
    if saved_as is loaded_as:
        assert not info["missing_keys"]
    with torch.no_grad():
        assert loaded.eval()(make_ids())[0].isfinite().all()


def test_a_summarizer_opens_as_a_classifier(tmp_path: Path) -> None:
    saved = converted(make_model("bart", AutoModelForSeq2SeqLM), EXITS)
    saved.save_pretrained(tmp_path)
    loaded, info = AutoModelForSequenceClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert {name.partition(".")[0] for name in info["missing_keys"]} == {"classification_head"}
    assert logits(loaded, "bart").isfinite().all()


@pytest.mark.parametrize(
    ("family", "lost"),
    [
        ("bert", "classifier.bias"),
        ("bert", "bert.pooler.dense.bias"),
        ("bert", "bert.encoder.layer.1.output.dense.bias"),
        ("roberta", "classifier.dense.weight"),
        ("bart", "model.decoder.layers.0.fc1.weight"),
    ],
)
def test_half_a_head_or_a_hole_in_the_encoder_is_damage(family: str, lost: str, tmp_path: Path) -> None:
    model = classifier(family)
    state = model.state_dict()
    assert lost in state
    for architectures in (None, ["HasheeOther"], [type(model).__name__]):
        config = copy.deepcopy(model.config)
        config.architectures = architectures
        rest = {name: value for name, value in state.items() if name != lost}
        with pytest.raises(hashee.CheckpointError, match=re.escape(lost)):
            type(model).from_pretrained(None, config=config, state_dict=rest)


def test_a_head_that_a_folder_should_have_is_not_made_up(tmp_path: Path) -> None:
    model = classifier("bert")
    config = copy.deepcopy(model.config)
    config.architectures = [type(model).__name__]
    rest = {name: value for name, value in model.state_dict().items() if not name.startswith("classifier")}
    with pytest.raises(hashee.CheckpointError, match="classifier"):
        type(model).from_pretrained(None, config=config, state_dict=rest)


@pytest.mark.parametrize("family", ["albert", "bert", "distilbert", "mpnet", "roberta", "bart"])
def test_mismatched_sizes_are_new_where_that_is_wanted(family: str, tmp_path: Path) -> None:
    model = classifier(family)
    model.save_pretrained(tmp_path)
    with pytest.raises(RuntimeError, match="size"):
        type(model).from_pretrained(tmp_path, num_labels=42)
    many = type(model).from_pretrained(tmp_path, num_labels=42, ignore_mismatched_sizes=True)
    assert logits(many, family).shape[1] == 42
    assert logits(many, family).isfinite().all()
    assert many.exit_table == model.exit_table
    few = type(model).from_pretrained(tmp_path, vocab_size=10, ignore_mismatched_sizes=True)
    assert few.exit_table.exit_layers.tolist() == [LAYERS] * 10, "no token of another vocabulary has an exit"
    ids = torch.tensor([[5, 7, 9, 2]])
    with torch.no_grad():
        assert few.eval()(ids).logits.isfinite().all()


@pytest.mark.parametrize("family", FAMILIES)
def test_models_on_the_meta_device_are_filled_or_refused(family: str) -> None:
    model = classifier(family)
    with torch.device("meta"):
        empty = type(model)(model.config)
    filled = copy.deepcopy(empty)
    filled.load_state_dict(model.state_dict(), assign=True)
    # Positions and the like are no weights, so `assign` leaves them on the meta device, as in transformers.
    for name, buffer in filled.named_buffers():
        if buffer.is_meta:
            owner, _, leaf = name.rpartition(".")
            filled.get_submodule(owner).register_buffer(leaf, model.get_buffer(name), persistent=False)
    filled.tie_weights()
    assert torch.equal(logits(filled, family), logits(model, family))
    undefined = empty.to_empty(device="cpu")
    with torch.no_grad():
        for value in (94636393850368, -1):
            undefined.hashed_encoder.exit_layers.fill_(value)
            with pytest.raises(hashee.CheckpointError, match="never filled"):
                undefined(**inputs_for(family))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", ["albert", "bert", "bart", "distilbert", "mpnet", "roberta-prelayernorm"])
def test_folders_open_in_any_precision(family: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = classifier(family)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path, dtype=dtype, device_map="cpu")
    assert loaded.dtype == dtype
    assert loaded.hashed_encoder.exit_layers.dtype == torch.int64
    difference = (logits(loaded, family).float() - logits(model, family)).abs().max()
    assert difference <= (1e-6 if dtype == torch.float32 else 0.25)
