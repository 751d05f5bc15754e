"""Importance of outputs without labels: exact where it can be computed by hand."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification

from architectures import make_model
from hashee.errors import InputError
from hashee.tables.measuring import measure_importance, measure_projections


@pytest.fixture(scope="module")
def model() -> Any:
    return make_model("bert", AutoModelForSequenceClassification, num_labels=1)


def batches() -> list[dict[str, Tensor]]:
    ids = torch.tensor([[1, 6, 7, 8, 2], [1, 9, 6, 2, 0]])
    return [{"input_ids": ids, "attention_mask": (ids != 0).long()}]


def test_of_a_single_score_it_is_the_effect_on_the_score(model: Any) -> None:
    by_signal = measure_importance(model, batches(), signal="answer", progress=False)
    found = measure_projections(model, batches(), lambda **inputs: model(**inputs).logits, progress=False)
    assert found.absolute == pytest.approx(by_signal.absolute, rel=1e-4, abs=1e-9)
    assert found.signed is None and found.signal == "projections"
    assert (found.counts == by_signal.counts).all()


def test_updates_that_the_outputs_do_not_read_are_worth_nothing(model: Any) -> None:
    def first_states(**inputs: Tensor) -> Tensor:
        states: Tensor = model.bert(**inputs).last_hidden_state[:, 0]
        return states

    found = measure_projections(model, batches(), first_states, progress=False)
    # After the last layer only the first position is read, which holds token 1.
    assert found.absolute[1, -1] > 0 and not found.absolute[2:, -1].any()
    assert found.absolute[6, 0] > 0


def test_one_seed_gives_one_importance_and_more_projections_another(model: Any) -> None:
    def states(**inputs: Tensor) -> Tensor:
        found: Tensor = model.bert(**inputs).last_hidden_state
        return found

    one, same = (measure_projections(model, batches(), states, seed=3, progress=False) for _ in range(2))
    assert one == same
    assert one != measure_projections(model, batches(), states, seed=3, projections=4, progress=False)


def test_outputs_that_are_not_finite_are_refused(model: Any) -> None:
    with pytest.raises(InputError, match="NaN"):
        measure_projections(model, batches(), lambda **inputs: model(**inputs).logits * float("nan"), progress=False)
