"""Classifiers after every layer: the same answers however sequences leave, and costs that are what runs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification

import hashee
from architectures import FIRST_WORD, VOCABULARY, make_model, randomise
from hashee.cost.macs import executed_by_layer, paper_by_layer
from hashee.data.tokenized import Tokenized
from hashee.errors import CheckpointError
from hashee.families.adapters import adapter_for
from hashee.hf.flops import count_flops, lengths_and_active
from hashee.study.cost import costs_by_exit
from hashee.study.exit_rules import ConfidenceAbove, EntropyBelow
from hashee.study.methods.early_exit import freeze_
from hashee.study.multi_exit import (
    CLASSIFIERS,
    AttentiveClassifier,
    Classifier,
    MeanClassifier,
    MultiExitModel,
    new_certainty,
    new_classifiers,
)
from hashee.training.outputs import ExitOutputs

FAMILIES = ("albert", "bert", "distilbert", "electra", "mpnet", "roberta", "roberta-prelayernorm")
LENGTHS = (9, 3, 12, 7, 5)


def make_exits(family: str = "bert", kind: Classifier = MeanClassifier, exits: bool = True) -> MultiExitModel:
    """Return a tiny model with random classifiers; with token exits at random, or without any."""
    dense = make_model(family, AutoModelForSequenceClassification, num_labels=3)
    layers = adapter_for(dense.config).shape(dense.config).layers
    make = hashee.ExitTable.at_random if exits else hashee.ExitTable.never
    model = hashee.convert(dense, make(VOCABULARY, layers))
    classifiers = new_classifiers(model, layers - 1, kind)
    return MultiExitModel(model, randomise(classifiers), randomise(new_certainty(model))).eval()


def make_examples(seed: int = 0) -> Tokenized:
    draws = np.random.default_rng(seed)
    ids = [draws.integers(FIRST_WORD, VOCABULARY, size=length).astype(np.int32) for length in LENGTHS]
    return Tokenized(ids, None, None, None, padding=1)


def middle(model: MultiExitModel, inputs: dict[str, Tensor]) -> float:
    """Return a confidence that about half of the sequences have after the first layer."""
    with torch.no_grad():
        first = model(**inputs).exits[0].logits
    sure = first.softmax(-1).amax(-1).sort().values
    return float(sure[1:3].mean())


@pytest.mark.parametrize("family", FAMILIES)
def test_the_last_exit_is_the_model_itself(family: str) -> None:
    model, inputs = make_exits(family), make_examples().inputs(range(len(LENGTHS)))
    with torch.no_grad():
        expected = model.model(**inputs).logits
        torch.testing.assert_close(model(**inputs).logits, expected, atol=1e-5, rtol=1e-5)
        logits, layers = model.leave(inputs, EntropyBelow(0.0))
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
    assert layers.tolist() == [model.layers] * len(LENGTHS)


@pytest.mark.parametrize("kind", CLASSIFIERS.values())
@pytest.mark.parametrize("family", FAMILIES)
def test_leaving_changes_nobodys_answer(family: str, kind: Classifier) -> None:
    model, examples = make_exits(family, kind), make_examples()
    together = examples.inputs(range(len(LENGTHS)))
    rule = ConfidenceAbove(middle(model, together))
    # Attention with random weights is so steep that it multiplies what is rounded; 6e-6 in torch, without kernels, too.
    near = {"atol": 1e-4 if kind is AttentiveClassifier else 1e-5, "rtol": 1e-5}
    with torch.no_grad():
        logits, layers = model.leave(together, rule)
        exits = model(**together).exits
        assert len(set(layers.tolist())) > 1, "some leave and some stay"
        for number in range(len(LENGTHS)):
            layer = int(layers[number])
            torch.testing.assert_close(logits[number], exits[layer - 1].logits[number], **near)
            alone, own_layer = model.leave(examples.inputs([number]), rule)
            assert own_layer.item() == layer
            torch.testing.assert_close(alone[0], logits[number], **near)


@pytest.mark.parametrize("kind", CLASSIFIERS.values())
def test_costs_are_layers_and_classifiers_up_to_the_exit(kind: Classifier) -> None:
    model, examples = make_exits(kind=kind), make_examples()
    costs = costs_by_exit(model, examples)
    ids = [row.tolist() for row in examples.ids]
    whole = count_flops(model.config, ids, model.exit_table, reads_first_row=True)
    width, labels = model.config.hidden_size, 3
    for number, length in enumerate(LENGTHS):
        classifier = width * width + width * labels
        if kind is AttentiveClassifier:
            inner = 128
            classifier = length * (width * inner + 2 * inner * inner + 2 * inner)
            # The first token is narrowed once more, as a query of its own.
            classifier += width * inner + 3 * inner * inner + inner * labels
        certainty = width
        deciding = (model.layers - 1) * (classifier + certainty)
        shape = adapter_for(model.config).shape(model.config)
        n, m = lengths_and_active(model.exit_table, [ids[number]])
        executed = executed_by_layer(shape, n, m, True)
        assert costs.executed[number, -1] == executed.sum() + deciding
        assert costs.executed[number, 0] == executed[0, 0] + classifier + certainty
        assert costs.paper[number, -1] == paper_by_layer(shape, n, m).sum() + deciding
    spent = len(LENGTHS) * (model.layers - 1) * width + costs_of_classifiers(model)
    assert costs.executed[:, -1].sum() == whole.executed_macs + spent
    assert costs.paper[:, -1].sum() == whole.paper_macs + spent


def costs_of_classifiers(model: MultiExitModel) -> int:
    return sum(classifier.macs(length) for classifier in model.classifiers for length in LENGTHS)


def test_the_attentive_classifier_costs_what_torch_counts() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    model, examples = make_exits(kind=AttentiveClassifier, exits=False), make_examples()
    state = model.start(examples.inputs([2])).advance()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model.classifiers[0](state)
    attending = 2 * 128 * LENGTHS[2]
    own = model.classifiers[0].macs(LENGTHS[2])
    # Torch's counter does not see the products inside its fused attention.
    assert counter.get_total_flops() / 2 in (own, own - attending)


@pytest.mark.parametrize("kind", CLASSIFIERS.values())
def test_what_was_saved_opens_equal(kind: Classifier, tmp_path: Path) -> None:
    model, inputs = make_exits(kind=kind), make_examples().inputs(range(len(LENGTHS)))
    model.tolerance = 0.25
    model.save_pretrained(tmp_path)
    opened = MultiExitModel.from_folder(tmp_path)
    assert opened.tolerance == 0.25 and not opened.training
    with torch.no_grad():
        for mine, theirs in zip(model(**inputs).exits, opened(**inputs).exits, strict=True):
            torch.testing.assert_close(mine.logits, theirs.logits)
            torch.testing.assert_close(mine.certainty, theirs.certainty)
    (tmp_path / "exits.json").unlink()
    with pytest.raises(CheckpointError, match="holds no model with internal classifiers"):
        MultiExitModel.from_folder(tmp_path)


def test_a_frozen_encoder_learns_nothing() -> None:
    model, inputs = make_exits(), make_examples().inputs(range(len(LENGTHS)))
    freeze_(model)
    exits: tuple[ExitOutputs, ...] = model.train()(**inputs).exits
    torch.stack([each.logits.sum() for each in exits]).sum().backward()
    assert all(parameter.grad is None for parameter in model.model.parameters())
    learns: Any = nn.ModuleList([model.classifiers])
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in learns.parameters())


def test_all_of_it_learns_together() -> None:
    model, inputs = make_exits(), make_examples().inputs(range(len(LENGTHS)))
    exits = model.train()(**inputs).exits
    torch.stack([each.logits.sum() for each in exits]).sum().backward()
    frozen = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert all("certainty" in name for name in frozen), frozen
