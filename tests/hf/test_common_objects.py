"""Converted models are objects as transformers' own models are: copied, pickled, resized, tied."""

import copy
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForMaskedLM,
)

import hashee
from architectures import FAMILIES, LAYERS, VOCABULARY, converted, make_ids, make_model, targets
from common_models import ENCODERS, EXITS, TOLERANCE, classifier, inputs_for, logits


@pytest.mark.parametrize("family", FAMILIES)
def test_copies_are_independent(family: str) -> None:
    model = classifier(family)
    expected = logits(model, family)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert type(copied) is type(model)
        assert torch.equal(logits(copied, family), expected)
        with torch.no_grad():
            copied.get_input_embeddings().weight.zero_()
        assert torch.equal(logits(model, family), expected)


def test_pickled_models_open_in_another_process(tmp_path: Path) -> None:
    for family in FAMILIES:
        model = classifier(family)
        contents = pickle.dumps((model, inputs_for(family), logits(model, family)))
        (tmp_path / f"{family}.pickle").write_bytes(contents)
    script = """
import pathlib, pickle, sys, torch
paths = sorted(pathlib.Path(sys.argv[1]).glob("*.pickle"))
for path in paths:
    model, inputs, expected = pickle.loads(path.read_bytes())
    with torch.no_grad():
        assert (model(**inputs).logits - expected).abs().max() <= 1e-5, path
    assert type(model).__name__.startswith("Hashee")
    assert pickle.loads(pickle.dumps(type(model))) is type(model)
print(len(paths))
"""
    run = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) == len(FAMILIES)


@pytest.mark.parametrize("family", FAMILIES)
def test_vocabularies_are_resized(family: str, tmp_path: Path) -> None:
    model = classifier(family)
    for size in (VOCABULARY + 13, VOCABULARY - 20):
        resized = copy.deepcopy(model)
        resized.resize_token_embeddings(size)
        assert resized.config.vocab_size == resized.get_input_embeddings().num_embeddings == size
        assert len(resized.exit_table.exit_layers) == size
        kept = min(size, VOCABULARY)
        assert torch.equal(resized.exit_table.exit_layers[:kept], model.exit_table.exit_layers[:kept])
        assert (resized.exit_table.exit_layers[kept:] == LAYERS).all()
        with pytest.raises(hashee.InputError):
            resized.hashed_encoder(torch.tensor([[size]]))
        resized.save_pretrained(tmp_path / str(size))
        loaded = type(model).from_pretrained(tmp_path / str(size))
        ids = make_ids().clamp(max=size - 1)
        ids[:, -1] = 2
        with torch.no_grad():
            decoded = targets(model, ids)
            assert torch.equal(loaded(ids, **decoded).logits, resized.eval()(ids, **decoded).logits)


@pytest.mark.parametrize("family", ENCODERS)
def test_tied_weights_stay_tied(family: str, tmp_path: Path) -> None:
    model = converted(make_model(family, AutoModelForMaskedLM), EXITS)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path)
    loaded.resize_token_embeddings(VOCABULARY + 3)
    for each in (model, loaded, copy.deepcopy(loaded), pickle.loads(pickle.dumps(loaded))):
        assert each.get_output_embeddings().weight is each.get_input_embeddings().weight
    with torch.no_grad():
        assert loaded.eval()(make_ids()).logits.shape[-1] == VOCABULARY + 3


@pytest.mark.parametrize("family", FAMILIES)
def test_embeddings_are_read_and_replaced(family: str) -> None:
    model = classifier(family)
    before = logits(model, family)
    other = copy.deepcopy(model.get_input_embeddings())
    assert other.weight is not model.get_input_embeddings().weight
    model.set_input_embeddings(other)
    assert model.get_input_embeddings().weight is other.weight
    assert torch.allclose(logits(model, family), before, atol=TOLERANCE)
    with torch.no_grad():
        other.weight.copy_(other.weight.flip(1))  # a factor would vanish in a norm
    assert not torch.allclose(logits(model, family), before, atol=1e-3)
    assert model.main_input_name == "input_ids"


@pytest.mark.parametrize("pooling", [True, False])
@pytest.mark.parametrize("family", ["albert", "bert", "camembert", "elasticbert", "mpnet", "roberta", "xlm-roberta"])
def test_encoders_with_and_without_a_pooler(family: str, pooling: bool, tmp_path: Path) -> None:
    from architectures import make_config, randomise
    from hashee.engine.reference import run_reference
    from hashee.families.adapters import ADAPTERS

    torch.manual_seed(0)
    dense = ADAPTERS[family].encoder_class(make_config(family), add_pooling_layer=pooling).eval()
    model = converted(randomise(dense), EXITS)
    with torch.no_grad():
        theirs = run_reference(dense, EXITS, input_ids=make_ids())
        ours = model(make_ids())
    assert (ours.pooler_output is not None) == pooling == (theirs.pooler_output is not None)
    for name in ours:
        assert (ours[name] - theirs[name]).abs().max() <= TOLERANCE
    model.save_pretrained(tmp_path)
    for options in ({"add_pooling_layer": pooling}, {}):  # a folder without a pooler says so
        loaded = type(model).from_pretrained(tmp_path, **options)
        with torch.no_grad():
            again = loaded(make_ids())
        assert torch.equal(again.last_hidden_state, ours.last_hidden_state)
        assert (again.pooler_output is not None) == pooling
