"""The loss is that of transformers, and distillation pulls towards the teacher."""

from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

from architectures import make_ids, make_model
from hashee.data.task import Kind
from hashee.data.task_types import TASK_TYPES
from hashee.errors import InputError
from hashee.training.objective import (
    HiddenDistillation,
    LogitDistillation,
    TargetLoss,
    even_layers,
    objective_for,
)
from hashee.training.outputs import Batch, Need, Outputs, outputs_of
from hashee.training.settings import Distillation

LOGITS = torch.tensor([[1.0, -0.5, 0.3], [0.2, 0.1, -1.2]])
TARGETS = {Kind.CLASSES: torch.tensor([2, 0]), Kind.LABELS: torch.tensor([[1.0, 0, 1], [0, 0, 1]])}


def batch_with(targets: Any, lengths: tuple[int, ...] = (1, 1, 1)) -> Batch:
    """Return a batch of texts of these lengths."""
    mask = (torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]).long()
    ones = torch.ones(len(lengths), dtype=torch.int64)
    return Batch(tuple(range(len(lengths))), {"attention_mask": mask}, ones, targets)


@pytest.mark.parametrize(
    ("kind", "problem", "labels", "targets"),
    [
        (Kind.CLASSES, "single_label_classification", 3, torch.tensor([0, 2, 1])),
        (Kind.LABELS, "multi_label_classification", 3, torch.tensor([[1.0, 0, 1], [0, 0, 0], [0, 1, 0]])),
        (Kind.SCORE, "regression", 1, torch.tensor([0.5, -1.0, 2.0])),
    ],
)
def test_it_is_the_loss_of_transformers(kind: Kind, problem: str, labels: int, targets: Any) -> None:
    model = make_model("bert", AutoModelForSequenceClassification, num_labels=labels, problem_type=problem)
    output = model(input_ids=make_ids(3), labels=targets)
    ours = TargetLoss(TASK_TYPES[kind])(Outputs(output.logits), batch_with(targets)) / 3
    assert torch.allclose(ours, output.loss, atol=1e-6)


def test_it_is_the_loss_of_transformers_for_tags() -> None:
    model = make_model("bert", AutoModelForTokenClassification, num_labels=3)
    labels = torch.randint(0, 3, (2, 12), generator=torch.Generator().manual_seed(0))
    labels[0, 3:] = -100
    output = model(input_ids=make_ids(2), labels=labels)
    counted = labels != -100
    ours = (
        TargetLoss(TASK_TYPES[Kind.TAGS])(Outputs(output.logits[counted]), batch_with(labels[counted])) / counted.sum()
    )
    assert torch.allclose(ours, output.loss, atol=1e-6)


@pytest.mark.parametrize("kind", [Kind.CLASSES, Kind.LABELS, Kind.SCORE])
def test_a_student_that_agrees_with_its_teacher_has_nothing_to_learn_from_it(kind: Kind) -> None:
    teacher = LOGITS[:, :1] if kind is Kind.SCORE else LOGITS
    objective = objective_for(TASK_TYPES[kind], Distillation(logits=1.0, temperature=3.0))
    assert objective.needs == Need.TEACHER
    unlabelled = batch_with(None)
    student = teacher.clone().requires_grad_()
    objective(Outputs(student), unlabelled, Outputs(teacher)).backward()
    assert student.grad is not None and student.grad.abs().max() < 1e-6
    other = (teacher + torch.tensor([[0.5] + [0.0] * (teacher.shape[1] - 1)])).requires_grad_()
    objective(Outputs(other), unlabelled, Outputs(teacher)).backward()
    assert other.grad is not None and (other.grad[:, 0] > 1e-3).all(), "it is pulled back"


def test_the_weight_divides_between_targets_and_teacher() -> None:
    teacher, batch = Outputs(LOGITS.flip(0)), batch_with(TARGETS[Kind.CLASSES])
    parts = [
        objective_for(TASK_TYPES[Kind.CLASSES], Distillation(weight))(Outputs(LOGITS), batch, teacher)
        for weight in (0.0, 0.25, 1.0)
    ]
    assert torch.allclose(parts[1], 0.75 * parts[0] + 0.25 * parts[2])
    assert not torch.allclose(parts[0], parts[2])


def hidden(seed: int, layers: int = 3, width: int = 4) -> Outputs:
    generator = torch.Generator().manual_seed(seed)
    states = tuple(torch.randn(2, 5, width, generator=generator) for _ in range(layers))
    return Outputs(LOGITS, states)


@pytest.mark.parametrize("distance", ["mse", "cosine"])
def test_hidden_states_follow_the_teacher_s_where_there_are_tokens(distance: str) -> None:
    student, teacher, batch = hidden(0), hidden(1, layers=5), batch_with(None, lengths=(5, 2))
    objective = HiddenDistillation(layers=((0, 0), (2, 4)), distance=distance)
    assert objective.needs == Need.TEACHER | Need.HIDDEN_STATES
    expected = 0.0
    for own, other in ((0, 0), (2, 4)):
        for row, length in enumerate((5, 2)):
            one, two = (each.hidden_states[at][row, :length] for each, at in ((student, own), (teacher, other)))  # type: ignore[index]
            apart = (one - two) ** 2 if distance == "mse" else 1 - torch.cosine_similarity(one, two)
            expected += float(apart.mean()) / 2
    assert float(objective(student, batch, teacher)) == pytest.approx(expected, rel=1e-5)
    same = HiddenDistillation(layers=((0, 0), (4, 4)), distance=distance)
    assert float(same(teacher, batch, teacher)) == pytest.approx(0.0, abs=1e-5)
    padded = teacher.hidden_states[0].clone()  # type: ignore[index]
    padded[1, 2:] = 99.0
    changed = Outputs(LOGITS, (padded, *teacher.hidden_states[1:]))  # type: ignore[index]
    assert torch.equal(objective(student, batch, changed), objective(student, batch, teacher)), "padding is nothing"


def test_the_loss_of_a_step_does_not_depend_on_how_it_is_cut() -> None:
    student, teacher, batch = hidden(0), hidden(1), batch_with(None, lengths=(5, 2))

    def row(outputs: Outputs, number: int) -> Outputs:
        states = tuple(state[number : number + 1] for state in outputs.hidden_states or ())
        return Outputs(outputs.logits[number : number + 1], states)

    objective = HiddenDistillation(first_only=False)
    ones = [
        Batch((number,), {"attention_mask": batch.inputs["attention_mask"][number : number + 1]}, batch.items[:1], None)
        for number in range(2)
    ]
    apart = [objective(row(student, number), ones[number], row(teacher, number)) for number in range(2)]
    assert torch.allclose(apart[0] + apart[1], objective(student, batch, teacher))


def test_what_cannot_be_learnt_from_is_one_clear_line() -> None:
    batch = batch_with(None, lengths=(5, 2))
    with pytest.raises(InputError, match="no labels"):
        TargetLoss(TASK_TYPES[Kind.CLASSES])(Outputs(LOGITS), batch)
    with pytest.raises(InputError, match="there is none; name a fitted model"):
        LogitDistillation(TASK_TYPES[Kind.CLASSES])(Outputs(LOGITS), batch)
    with pytest.raises(InputError, match="of 4 numbers cannot follow a teacher's of 6"):
        HiddenDistillation()(hidden(0), batch, hidden(1, width=6))
    with pytest.raises(InputError, match="layer 3 of the teacher cannot be distilled; it has 0 to 2"):
        HiddenDistillation(((0, 3),))(hidden(0), batch, hidden(1))
    with pytest.raises(InputError, match="unknown distance 'l1'"):
        HiddenDistillation(distance="l1")


def test_layers_are_paired_evenly() -> None:
    assert even_layers(3, 12) == ((1, 4), (2, 8), (3, 12))
    assert even_layers(4, 4) == ((1, 1), (2, 2), (3, 3), (4, 4))


def test_a_model_is_asked_for_what_is_needed() -> None:
    model = make_model("bert", AutoModelForSequenceClassification, num_labels=3, attn_implementation="eager")
    ids = make_ids(2)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    batch = Batch((0, 1), inputs, torch.ones(2, dtype=torch.int64), None)
    assert outputs_of(model, batch, Need.TEACHER).hidden_states is None
    outputs = outputs_of(model, batch, Need.HIDDEN_STATES | Need.ATTENTIONS)
    layers = model.config.num_hidden_layers
    assert len(outputs.hidden_states or ()) == layers + 1 and len(outputs.attentions or ()) == layers
