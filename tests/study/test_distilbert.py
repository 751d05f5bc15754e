"""DistilBERT: the student is made of its teacher's layers and has nothing more to learn from it once it is the same."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from static_models import TASK, make_batch, make_teacher, run_on_tiny_data

from hashee.data.task import Kind
from hashee.data.task_types import TASK_TYPES
from hashee.errors import UnsupportedModel
from hashee.export.loading import load
from hashee.families.layers import blocks_by_layer, spread_layers
from hashee.study.methods.distilbert import distillation_loss
from hashee.study.students import depth_at, student_of
from hashee.training.objective import TargetLoss, WeightedSum
from hashee.training.outputs import outputs_of


def test_layers_are_spread_from_the_first_to_the_last() -> None:
    assert spread_layers(6, 12) == (1, 3, 5, 8, 10, 12), "those of the released DistilBERT"
    assert spread_layers(3, 6)[0] == 1 and spread_layers(3, 6)[-1] == 6
    assert spread_layers(4, 4) == (1, 2, 3, 4) and spread_layers(1, 2) == (1,)
    assert [depth_at(share, 12) for share in (0.5, 0.34)] == [6, 4]
    assert [depth_at(share, 6) for share in (0.5, 0.34)] == [3, 2]
    assert depth_at(0.34, 1) == 1


@pytest.mark.parametrize("family", ["bert", "roberta", "electra", "mpnet", "xlm-roberta"])
def test_a_student_has_its_teachers_layers_embeddings_and_head(family: str, tmp_path: Path) -> None:
    teacher = make_teacher(tmp_path, family)
    student, whole = student_of(teacher, (1, 4), seed=0), teacher.load()
    assert student.config.num_hidden_layers == 2
    layers, theirs = blocks_by_layer(student), blocks_by_layer(whole)
    inside = set()
    for number, chosen in enumerate((1, 4)):
        [(module, _)], [(other, _)] = layers[number], theirs[chosen - 1]
        for name, weight in module.named_parameters():
            assert torch.equal(weight, other.get_parameter(name))
            inside.add(id(weight))
    rest = {name: weight for name, weight in student.named_parameters() if id(weight) not in inside}
    assert any("classifier" in name for name in rest) and any("embeddings" in name for name in rest)
    assert all(torch.equal(weight, whole.get_parameter(name)) for name, weight in rest.items())


def test_layers_that_are_shared_stay_shared(tmp_path: Path) -> None:
    one_group = {"num_hidden_groups": 1, "inner_group_num": 2, "classifier_dropout_prob": 0.0}
    teacher = make_teacher(tmp_path / "one", "albert", **one_group)
    student = student_of(teacher, (1, 4), seed=0)
    for name, weight in student.named_parameters():
        assert torch.equal(weight, teacher.load().get_parameter(name))
    assert [len(layer) for layer in blocks_by_layer(student)] == [2, 2]
    with pytest.raises(UnsupportedModel, match="2 groups"):
        student_of(make_teacher(tmp_path / "two", "albert"), (1, 4), seed=0)


def test_the_teacher_itself_has_nothing_to_learn_from_the_teacher(tmp_path: Path) -> None:
    teacher = make_teacher(tmp_path)
    objective = distillation_loss(TASK_TYPES[TASK.kind])
    assert sum(weight for weight, _ in objective.parts) == pytest.approx(1.0)
    assert [round(8 * weight) for weight, _ in objective.parts] == [5, 2, 1]
    from_teacher = WeightedSum(tuple(part for part in objective.parts if not isinstance(part[1], TargetLoss)))
    batch = make_batch(teacher.config)
    with torch.no_grad():
        theirs = outputs_of(teacher.packed(teacher.load()), batch, objective.needs)
    gradients = {}
    for depth in (4, 2):
        student = teacher.packed(student_of(teacher, spread_layers(depth, 4), seed=0))
        loss = from_teacher(outputs_of(student, batch, objective.needs), batch, theirs)
        loss.backward()
        gradients[depth] = max(float(weight.grad.abs().max()) for weight in student.parameters())
    assert gradients[4] < 1e-4 and gradients[2] > 1e-2


def test_labels_and_all_tokens_count(tmp_path: Path) -> None:
    teacher = make_teacher(tmp_path)
    objective, batch = distillation_loss(TASK_TYPES[TASK.kind]), make_batch(teacher.config)
    assert batch.targets is not None
    with torch.no_grad():
        outputs = outputs_of(teacher.packed(teacher.load()), batch, objective.needs)
    loss = objective(outputs, batch, outputs)
    torch.testing.assert_close(loss, TargetLoss(TASK_TYPES[TASK.kind])(outputs, batch) / 4)
    assert outputs.hidden_states is not None
    last = outputs.hidden_states[-1].clone()
    last[0, 5] *= -1
    turned = replace(outputs, hidden_states=(*outputs.hidden_states[:-1], last))
    # One of the twelve tokens of a text points the other way: a cosine of -1.
    torch.testing.assert_close(objective(turned, batch, outputs) - loss, torch.tensor(2 / 12 / 8))


@pytest.mark.parametrize("kind", [Kind.CLASSES, Kind.TAGS])
def test_two_students_end_to_end(kind: Kind, backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run_on_tiny_data("distilbert", backbone, tmp_path, monkeypatch, kind)
    assert [point.knob for point in result.curve] == [2.0, 1.0]
    assert [point.paper_speedup for point in result.curve] == pytest.approx([2.0, 4.0])
    assert result.passes == 8.0 and result.quality["test"] is not None and result.quality["test"] > 0.8
    folder = next(tmp_path.glob("work/*/work/distilbert-2"))
    assert load(folder).config.num_hidden_layers == 2
