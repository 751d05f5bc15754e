"""Agreement is 1 for equal outputs and says what differs."""

import numpy as np
import pytest

from hashee.data.output_types import OutputType
from hashee.distillation.agreement import agreement


def rows(seed: int, *shape: int) -> list[np.ndarray]:
    return list(np.random.default_rng(seed).normal(size=shape))


def test_equal_outputs_agree() -> None:
    embeddings, groups = rows(0, 30, 8), np.arange(30) // 3
    found = agreement(OutputType.EMBEDDING, embeddings, embeddings, None)
    assert found == pytest.approx({"cosine": 1, "spearman": 1, "recall@10": 1, "score": 1})
    scores = rows(1, 30, 1)
    found = agreement(OutputType.SCORE, scores, scores, groups)
    assert found == pytest.approx({"spearman": 1, "difference": 0, "same_order": 1, "score": 1})
    assert agreement(OutputType.STATES, rows(2, 4, 5, 8), rows(2, 4, 5, 8), None)["cosine"] == pytest.approx(1)


def test_unrelated_outputs_do_not() -> None:
    found = agreement(OutputType.EMBEDDING, rows(0, 200, 32), rows(1, 200, 32), None)
    assert abs(found["cosine"]) < 0.1 and abs(found["spearman"]) < 0.1 and found["recall@10"] < 0.2


def test_neighbours_are_those_of_the_dense_model() -> None:
    # Texts on a circle: turning them all by the same angle leaves neighbours and similarities as they are.
    angles = np.sort(np.random.default_rng(0).uniform(0, 2 * np.pi, size=40))
    dense = list(np.stack([np.cos(angles), np.sin(angles)], axis=1))
    turned = list(np.stack([np.cos(angles + 1), np.sin(angles + 1)], axis=1))
    found = agreement(OutputType.EMBEDDING, turned, dense, None)
    assert found["cosine"] == pytest.approx(np.cos(1)) and found["spearman"] > 0.999
    assert found["recall@10"] == pytest.approx(1)


def test_order_is_within_queries() -> None:
    dense = [np.array([value]) for value in (1.0, 2.0, 10.0, 20.0)]
    fast = [np.array([value]) for value in (2.0, 1.0, 3.0, 4.0)]
    assert agreement(OutputType.SCORE, fast, dense, np.array([0, 0, 1, 1]))["same_order"] == 0.5
    assert "same_order" not in agreement(OutputType.SCORE, fast, dense, np.arange(4))
