"""TinyBERT: layers follow the teacher's states and attention scores, wherever there is padding."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from static_models import longer, make_batch, make_teacher, run_on_tiny_data
from torch import Tensor
from transformers import AutoModelForSequenceClassification

from architectures import make_model
from hashee.data.task import Kind
from hashee.errors import InputError, UnsupportedModel
from hashee.export.loading import load
from hashee.files import read_json
from hashee.study.attention_scores import AttentionDistillation, ScoredModel
from hashee.study.methods.tinybert import layers_loss
from hashee.study.students import student_of
from hashee.training.objective import even_layers
from hashee.training.outputs import Batch, Outputs, outputs_of


def outputs(model: ScoredModel, batch: Batch) -> Outputs:
    with torch.no_grad():
        return outputs_of(model.eval(), batch, layers_loss(((1, 1),)).needs)


def test_scores_are_those_before_the_softmax(tmp_path: Path) -> None:
    teacher = make_teacher(tmp_path)
    batch, model = make_batch(teacher.config), teacher.load()
    found = outputs(ScoredModel(model), batch)
    assert found.hidden_states is not None and found.attentions is not None and len(found.attentions) == 4
    states, own = found.hidden_states[2], model.bert.encoder.layer[2].attention.self
    size = own.attention_head_size
    with torch.no_grad():
        query, key = own.query(states), own.key(states)
    for head in range(own.num_attention_heads):
        part = slice(head * size, (head + 1) * size)
        by_hand = query[..., part] @ key[..., part].transpose(1, 2) / size**0.5
        torch.testing.assert_close(found.attentions[2][:, head], by_hand, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", ["bert", "roberta", "electra", "albert"])
def test_scores_give_the_attention_weights(family: str, tmp_path: Path) -> None:
    groups = {"num_hidden_groups": 1, "inner_group_num": 1} if family == "albert" else {}
    model = make_teacher(tmp_path, family, **groups).load()
    model.set_attn_implementation("eager")
    batch = make_batch(model.config)
    scores = outputs(ScoredModel(model), batch).attentions
    with torch.no_grad():
        weights = model(**batch.inputs, output_attentions=True).attentions
    assert scores is not None and len(scores) == len(weights) == 4
    for own, other in zip(scores, weights, strict=True):
        masked = own.masked_fill(~batch.mask[:, None, None], float("-inf"))
        torch.testing.assert_close(masked.softmax(-1), other, rtol=1e-4, atol=1e-5)
    linear = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    assert not any(module._forward_hooks for module in linear), "hooks are gone again"


def test_the_loss_is_zero_for_the_teacher_itself_and_for_nobody_else(tmp_path: Path) -> None:
    teacher = make_teacher(tmp_path)
    batch = make_batch(teacher.config)
    theirs = outputs(ScoredModel(teacher.load()), batch)
    same = layers_loss(even_layers(4, 4))
    assert float(same(theirs, batch, theirs)) == 0.0
    pairs = even_layers(2, 4)
    assert pairs == ((1, 2), (2, 4))
    student = ScoredModel(student_of(teacher, [layer for _, layer in pairs], seed=0))
    assert float(layers_loss(pairs)(outputs(student, batch), batch, theirs)) > 0.1


@pytest.mark.parametrize("part", ["embeddings", "states", "scores"])
def test_every_part_counts_as_in_the_paper(part: str, tmp_path: Path) -> None:
    teacher = make_teacher(tmp_path)
    batch = make_batch(teacher.config)
    theirs = outputs(ScoredModel(teacher.load()), batch)
    assert theirs.hidden_states is not None and theirs.attentions is not None
    changes = {
        "embeddings": {"hidden_states": (theirs.hidden_states[0] + 2.0, *theirs.hidden_states[1:])},
        "states": {"hidden_states": (*theirs.hidden_states[:-1], theirs.hidden_states[-1] + 2.0)},
        "scores": {"attentions": (*theirs.attentions[:-1], theirs.attentions[-1] + 2.0)},
    }
    other = replace(theirs, **changes[part])
    # The paper adds up mean squared errors; one of them is 4 for each of five texts.
    torch.testing.assert_close(layers_loss(even_layers(4, 4))(other, batch, theirs), torch.tensor(20.0))


def test_padding_does_not_matter(tmp_path: Path) -> None:
    teacher = make_teacher(tmp_path)
    pairs = even_layers(2, 4)
    student = ScoredModel(student_of(teacher, [layer for _, layer in pairs], seed=0))
    model = ScoredModel(teacher.load())

    def loss(batch: Batch) -> Tensor:
        return layers_loss(pairs)(outputs(student, batch), batch, outputs(model, batch))

    batch = make_batch(teacher.config)
    torch.testing.assert_close(loss(longer(batch)), loss(batch), rtol=1e-4, atol=1e-4)
    alone = [
        loss(Batch((0,), {name: tensor[row : row + 1] for name, tensor in batch.inputs.items()}, torch.ones(1), None))
        for row in range(5)
    ]
    torch.testing.assert_close(torch.stack(alone).sum(), loss(batch), rtol=1e-4, atol=1e-4)


def test_without_scores_there_is_nothing_to_compare(tmp_path: Path) -> None:
    teacher = make_teacher(tmp_path)
    batch = make_batch(teacher.config)
    with pytest.raises(InputError, match="ScoredModel"):
        AttentionDistillation(((1, 1),))(Outputs(torch.zeros(5, 2)), batch, None)


def test_projections_in_one_matrix_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match="separate projections"):
        ScoredModel(make_model("modernbert", AutoModelForSequenceClassification))


@pytest.mark.parametrize("kind", [Kind.CLASSES, Kind.TAGS])
def test_two_stages_end_to_end(kind: Kind, backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run_on_tiny_data("tinybert", backbone, tmp_path, monkeypatch, kind)
    assert [(point.knob, round(point.paper_speedup, 6)) for point in result.curve] == [(2.0, 2.0)]
    assert result.passes == 8.0 and result.quality["test"] is not None and result.quality["test"] > 0.8
    work = next(tmp_path.glob("work/*/work/tinybert-2"))
    stages = [read_json(work / name / "stage.json") or {} for name in ("layers", "predictions")]
    assert [stage["steps"] for stage in stages] == [24, 24], "two of the four passes each"
    losses = [row["loss"] for row in stages[0]["history"] if "loss" in row]
    assert losses[-1] < 0.7 * losses[0]
    assert load(work / "predictions").config.num_hidden_layers == 2
