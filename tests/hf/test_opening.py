"""There is one way to open a folder, and it refuses models that lack weights or hold some that are not finite."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification

from architectures import VOCABULARY, make_model
from hashee.errors import CheckpointError
from hashee.hf.opening import open_config, open_dense, open_tokenizer
from small_tokenizer import make_tokenizer

HEAD = "ForSequenceClassification"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A dense classifier with its tokenizer."""
    make_model("bert", AutoModelForSequenceClassification).save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    return tmp_path


def edit_weights(folder: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    """Change the weights of a folder."""
    weights = load_file(folder / "model.safetensors")
    edit(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def test_whatever_is_in_a_folder_is_opened(folder: Path) -> None:
    config = open_config(str(folder))
    assert config.vocab_size == VOCABULARY
    for source in (folder, folder / "config.json"):
        assert open_tokenizer(source).get_vocab() == make_tokenizer().get_vocab()
    saved = make_model("bert", AutoModelForSequenceClassification)
    for new_head in (False, True):
        opened = open_dense(str(folder), HEAD, new_head=new_head)
        assert type(opened) is type(saved) and opened.dtype == torch.float32
        assert all(torch.equal(opened.state_dict()[name], value) for name, value in saved.state_dict().items())


def test_weights_come_in_single_precision(folder: Path) -> None:
    edit_weights(folder, lambda weights: weights.update({name: value.half() for name, value in weights.items()}))
    assert {parameter.dtype for parameter in open_dense(str(folder), HEAD).parameters()} == {torch.float32}


def test_a_new_head_must_be_asked_for(tmp_path: Path) -> None:
    make_model("bert", AutoModelForMaskedLM).save_pretrained(tmp_path)
    with pytest.raises(
        CheckpointError, match=r"lacks 4 weights, such as bert\.pooler\.dense\.bias, .*; save the model"
    ):
        open_dense(str(tmp_path), HEAD)
    open_dense(str(tmp_path), HEAD, new_head=True)


def test_a_head_for_other_labels_makes_way(folder: Path) -> None:
    config = open_config(str(folder))
    config.num_labels = 7
    assert open_dense(str(folder), HEAD, config=config, new_head=True).classifier.out_features == 7


@pytest.mark.parametrize(
    "name", ["bert.embeddings.word_embeddings.weight", "bert.pooler.dense.bias", "classifier.weight"]
)
def test_half_of_a_part_is_damage(name: str, folder: Path) -> None:
    edit_weights(folder, lambda weights: weights.pop(name))
    for new_head in (False, True):
        with pytest.raises(CheckpointError, match=f"lacks 1 weights.*{name}"):
            open_dense(str(folder), HEAD, new_head=new_head)


def test_weights_of_an_encoder_must_have_its_size(folder: Path) -> None:
    config = open_config(str(folder))
    config.vocab_size += 1
    with pytest.raises(CheckpointError, match=r"lacks 1 weights of the encoder, such as .*word_embeddings"):
        open_dense(str(folder), HEAD, config=config, new_head=True)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_must_be_finite(value: float, folder: Path) -> None:
    edit_weights(folder, lambda weights: weights["bert.encoder.layer.1.output.dense.weight"][3].fill_(value))
    for new_head in (False, True):
        with pytest.raises(CheckpointError, match=r"layer\.1\.output\.dense\.weight of .* holds NaN or infinite"):
            open_dense(str(folder), HEAD, new_head=new_head)


def test_a_folder_without_a_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"holds no config\.json; name the folder of a model"):
        open_config(str(tmp_path))
