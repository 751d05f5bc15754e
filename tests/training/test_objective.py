"""The loss is that of transformers, and distillation pulls towards the teacher."""

from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

from architectures import make_ids, make_model
from hashee.data.task import Kind
from hashee.training.objective import Objective

LOGITS = torch.tensor([[1.0, -0.5, 0.3], [0.2, 0.1, -1.2]])
TARGETS = {Kind.CLASSES: torch.tensor([2, 0]), Kind.LABELS: torch.tensor([[1.0, 0, 1], [0, 0, 1]])}


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
    assert torch.allclose(Objective(kind).loss(output.logits, targets) / 3, output.loss, atol=1e-6)


def test_it_is_the_loss_of_transformers_for_tags() -> None:
    model = make_model("bert", AutoModelForTokenClassification, num_labels=3)
    labels = torch.randint(0, 3, (2, 12), generator=torch.Generator().manual_seed(0))
    labels[0, 3:] = -100
    output = model(input_ids=make_ids(2), labels=labels)
    counted = labels != -100
    ours = Objective(Kind.TAGS).loss(output.logits[counted], labels[counted]) / counted.sum()
    assert torch.allclose(ours, output.loss, atol=1e-6)


@pytest.mark.parametrize("kind", [Kind.CLASSES, Kind.LABELS, Kind.SCORE])
def test_a_student_that_agrees_with_its_teacher_has_nothing_to_learn_from_it(kind: Kind) -> None:
    teacher = LOGITS[:, :1] if kind is Kind.SCORE else LOGITS
    targets = TARGETS.get(kind, torch.tensor([0.0, 1.0]))
    objective = Objective(kind, distill=1.0, temperature=3.0)
    student = teacher.clone().requires_grad_()
    objective.loss(student, targets, teacher).backward()
    assert student.grad is not None and student.grad.abs().max() < 1e-6
    other = (teacher + torch.tensor([[0.5] + [0.0] * (teacher.shape[1] - 1)])).requires_grad_()
    objective.loss(other, targets, teacher).backward()
    assert other.grad is not None and (other.grad[:, 0] > 1e-3).all(), "it is pulled back"


def test_the_weight_divides_between_targets_and_teacher() -> None:
    teacher = LOGITS.flip(0)
    parts = [
        Objective(Kind.CLASSES, weight).loss(LOGITS, TARGETS[Kind.CLASSES], teacher) for weight in (0.0, 0.25, 1.0)
    ]
    assert torch.allclose(parts[1], 0.75 * parts[0] + 0.25 * parts[2])
    assert not torch.allclose(parts[0], parts[2])
