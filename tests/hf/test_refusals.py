"""What cannot be honoured is refused, and the documented list of refusals is the one that is tested."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import (
    AutoModel,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
)

import hashee
from architectures import LAYERS, VOCABULARY, converted, make_ids, make_mask, make_model, make_writer
from common_models import EXITS, classifier

DOCS = Path(__file__).parents[2] / "docs" / "huggingface.md"


def _bert(**inputs: Any) -> Any:
    return converted(make_model("bert"), EXITS)(**{"input_ids": make_ids()} | inputs)


def _no_table(_: Path) -> None:
    config = copy.deepcopy(converted(make_model("bert"), EXITS).config)
    AutoModel.from_config(config)(make_ids())


def _non_finite(folder: Path) -> None:
    model = classifier("bert")
    with torch.no_grad():
        model.classifier.bias[0] = float("nan")
    model.save_pretrained(folder)
    AutoModelForSequenceClassification.from_pretrained(folder)


def _missing(folder: Path) -> None:
    model = classifier("bert")
    state = {name: value for name, value in model.state_dict().items() if "layer.0" not in name}
    type(model).from_pretrained(None, config=model.config, state_dict=state)


REFUSALS: dict[str, Callable[[Path], Any]] = {
    "`torch.jit.trace`": lambda _: torch.jit.trace(classifier("bert").eval(), make_ids(), strict=False),
    "`output_attentions`": lambda _: _bert(output_attentions=True),
    "`inputs_embeds` without `input_ids`": lambda _: _bert(input_ids=None, inputs_embeds=torch.randn(5, 12, 24)),
    "masks of three or four dimensions": lambda _: _bert(attention_mask=torch.ones(5, 1, 12, 12)),
    "masks with values other than 0 and 1": lambda _: _bert(attention_mask=torch.full((5, 12), 0.5)),
    "`past_key_values` for an encoder": lambda _: _bert(past_key_values=((None,),)),
    "`encoder_hidden_states` for an encoder": lambda _: _bert(encoder_hidden_states=torch.randn(5, 12, 24)),
    "encoders' classes configured as decoders": lambda _: converted(
        transformers.BertLMHeadModel(make_model("bert", is_decoder=True).config), EXITS
    ),
    "`decoder_table` for other decoders (T5)": lambda _: hashee.convert(
        make_model("t5", AutoModelForSeq2SeqLM), decoder_table=hashee.ExitTable.never(VOCABULARY, 2)
    ),
    "`decoder_inputs_embeds` without ids": lambda _: hashee.convert(
        make_writer("bart"), decoder_table=hashee.ExitTable.never(VOCABULARY, LAYERS)
    )(make_ids(), decoder_inputs_embeds=torch.randn(5, 12, 24)),
    "`cu_seq_lens_q`, `cu_seq_lens_k`": lambda _: _bert(cu_seq_lens_q=torch.tensor([0, 5])),
    "`head_mask`": lambda _: _bert(head_mask=torch.ones(LAYERS, 3)),
    "a classifier on left-padded rows": lambda _: classifier("bert")(make_ids(), make_mask("left")),
    "token ids outside the table": lambda _: _bert(input_ids=torch.tensor([[VOCABULARY]])),
    "texts longer than the model": lambda _: _bert(input_ids=torch.ones(1, 41, dtype=torch.long)),
    "a config without its exit table": _no_table,
    "missing weights": _missing,
    "non-finite weights": _non_finite,
    "a model that has exits already": lambda _: converted(converted(make_model("bert"), EXITS), EXITS),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_refusals_are_errors_of_ours(what: str, tmp_path: Path) -> None:
    with pytest.raises(hashee.HasheeError) as caught:
        REFUSALS[what](tmp_path)
    assert len(str(caught.value).splitlines()) == 1


def test_the_documented_list_of_refusals_is_the_one_that_is_tested() -> None:
    section = DOCS.read_text(encoding="utf-8").split("## What is refused")[1].split("\n## ")[0]
    documented = [row.split("|")[1].strip() for row in section.splitlines() if row.startswith("|")][2:]
    assert documented == list(REFUSALS)
