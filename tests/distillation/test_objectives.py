"""A student that equals its teacher has no loss; each objective sees what it is about and nothing else."""

import pytest
import torch
from torch import Tensor

from hashee.distillation.objectives import EmbeddingDistillation, ScoreDistillation, StateDistillation
from hashee.errors import InputError
from hashee.training.objective import Objective
from hashee.training.outputs import Batch, Outputs


def batch(rows: int = 4, longest: int = 3) -> Batch:
    mask = torch.ones(rows, longest, dtype=torch.int64)
    mask[0, 1:] = 0
    return Batch(tuple(range(rows)), {"attention_mask": mask}, torch.ones(rows), None)


def loss(objective: Objective, own: Tensor, other: Tensor) -> float:
    return float(objective(Outputs(own), batch(len(own)), Outputs(other)))


@pytest.mark.parametrize(
    ("objective", "shape"),
    [
        (EmbeddingDistillation(lengths=True), (4, 8)),
        (ScoreDistillation(2.0, torch.tensor([0, 0, 1, 1])), (4, 1)),
        (ScoreDistillation(), (4, 3)),
        (StateDistillation(), (4, 3, 8)),
    ],
)
def test_an_equal_student_has_no_loss_and_another_has(objective: Objective, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    one, other = torch.randn(shape), torch.randn(shape)
    assert loss(objective, one, one) == pytest.approx(0, abs=1e-5)
    assert loss(objective, one, other) > 0.1
    with pytest.raises(InputError, match="dense model"):
        objective(Outputs(one), batch(), None)


def test_lengths_count_only_where_they_matter() -> None:
    torch.manual_seed(0)
    one = torch.randn(4, 8)
    assert loss(EmbeddingDistillation(), 3 * one, one) == pytest.approx(0, abs=1e-5)
    assert loss(EmbeddingDistillation(lengths=True), 3 * one, one) == pytest.approx(4 * 4, rel=1e-4)


def test_similarities_within_the_batch_are_counted() -> None:
    one = torch.eye(4)[:2]
    # Both texts moved by the same angle, towards each other.
    moved = torch.nn.functional.normalize(one + 0.5 * one.flip(0), dim=-1)
    cosine = float((one * moved).sum(-1)[0])
    similarity = float(moved[0] @ moved[1])
    assert loss(EmbeddingDistillation(similarity_weight=0), moved, one) == pytest.approx(2 * (1 - cosine), rel=1e-5)
    expected = 2 * (1 - cosine) + 2 * similarity**2
    assert loss(EmbeddingDistillation(), moved, one) == pytest.approx(expected, rel=1e-5)


def test_order_is_that_of_documents_of_one_query() -> None:
    other = torch.tensor([[0.0], [4.0], [0.0], [4.0]])
    swapped = other[[1, 0, 3, 2]]
    across = other[[2, 1, 0, 3]]  # equal scores trade queries
    groups = torch.tensor([0, 0, 1, 1])
    order = ScoreDistillation(1.0, groups, order_weight=1.0)
    squared = ScoreDistillation(1.0, groups, order_weight=0.0)
    assert loss(order, swapped, other) > loss(squared, swapped, other) + 1
    assert loss(order, across, other) == pytest.approx(0, abs=1e-5)
    # Without two documents of one query there is no order to keep.
    alone = ScoreDistillation(1.0, torch.arange(4))
    assert loss(alone, swapped, other) == pytest.approx(loss(squared, swapped, other))


def test_padding_has_no_part_in_the_loss_of_states() -> None:
    torch.manual_seed(0)
    one = torch.randn(4, 3, 8)
    other = one.clone()
    other[0, 1:] = torch.randn(2, 8)
    assert loss(StateDistillation(), one, other) == pytest.approx(0, abs=1e-5)
