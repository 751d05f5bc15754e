"""Weights lie where a processor reads them fast, and stay the same weights."""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForMaskedLM

from architectures import converted, make_exits, make_model
from hashee.memory import LINE, settle_


def test_loaded_weights_begin_with_a_line_of_the_cache(tmp_path: Path) -> None:
    model = converted(make_model("bert", AutoModelForMaskedLM), make_exits("random exits"))
    model.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    # A header of another length moves the weights about; one of the two is at odds with lines.
    for note in ("", "a" * 8):
        save_file(load_file(path), path, metadata={"format": "pt", "note": note})
        loaded = type(model).from_pretrained(tmp_path)
        assert all(parameter.data_ptr() % LINE == 0 for parameter in loaded.parameters())
        for name, parameter in model.named_parameters():
            assert torch.equal(loaded.get_parameter(name), parameter)
        # Words are told from states by the very weights that embed them.
        assert loaded.get_output_embeddings().weight is loaded.get_input_embeddings().weight


def test_converted_weights_are_still_those_of_the_dense_model() -> None:
    dense = make_model("bert")
    weight = dense.encoder.layer[0].output.dense.weight
    weight.data = torch.cat([weight.data.new_zeros(1), weight.data.flatten()])[1:].view(weight.shape)
    before = weight.clone()
    assert weight.data_ptr() % LINE
    model = converted(dense, make_exits("random exits"))
    assert model.encoder.layer[0].output.dense.weight is weight
    assert weight.data_ptr() % LINE == 0
    assert torch.equal(weight, before)


def test_what_lies_well_is_not_moved() -> None:
    model = make_model("bert")
    settle_(model)
    places = [parameter.data_ptr() for parameter in model.parameters()]
    settle_(model)
    assert [parameter.data_ptr() for parameter in model.parameters()] == places
