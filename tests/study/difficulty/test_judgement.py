"""Figures of merit, worked out by hand and by scikit-learn, and the paper's Majority on the authors' set."""

import os

import numpy as np
import pytest
from sklearn.metrics import precision_recall_fscore_support

from hashee.study.difficulty.datasets import flat_targets, load_set
from hashee.study.difficulty.judgement import calibration_error, judge, merit
from hashee.study.difficulty.predictor import Majority, PredictorSettings
from hashee.study.difficulty.sampling import splits_of
from hashee.study.paper import DIFFICULTIES


def test_the_negative_label_is_counted_over_all_layers_at_once() -> None:
    draws = np.random.default_rng(0)
    probabilities, targets = draws.random((50, 6)), draws.integers(0, 2, (50, 6))
    found = judge(probabilities, targets)
    predicted = (probabilities >= 0.5).astype(int)
    expected = precision_recall_fscore_support(targets.ravel(), predicted.ravel(), pos_label=0, average="binary")[:3]
    assert (found.precision, found.recall, found.f1) == pytest.approx(expected)
    assert found.accuracy == pytest.approx((predicted == targets).mean())
    assert found.layer_accuracy == pytest.approx((predicted == targets).mean(axis=0))


def test_nothing_predicted_negative_has_no_precision() -> None:
    found = judge(np.ones((4, 2)), np.array([[0, 1]] * 4))
    assert (found.precision, found.recall, found.f1, found.accuracy) == (None, 0.0, None, 0.5)
    assert merit("sentence", found) == 0.0 and merit("human", found) == 0.5


def test_words_that_were_never_predicted_do_not_count() -> None:
    probabilities = np.array([[0.9, 0.1], [np.nan, np.nan]])
    assert judge(probabilities, np.array([[1, 0], [0, 0]])).accuracy == 1.0


def test_calibration_is_the_distance_of_probabilities_from_shares() -> None:
    right = np.array([[1], [1], [1], [0]])
    assert calibration_error(np.full((4, 1), 0.75), right) == pytest.approx(0.0)
    assert calibration_error(np.full((4, 1), 1.0), right) == pytest.approx(0.25)
    both = np.array([[0.95], [0.95], [0.05], [0.05]])
    assert calibration_error(both, np.array([[1], [0], [1], [0]])) == pytest.approx(0.45)


@pytest.mark.data
@pytest.mark.skipif("HASHEE_DATA" not in os.environ, reason="HASHEE_DATA is not set")
def test_majority_on_the_authors_set_is_the_papers(tmp_path: object) -> None:
    data = load_set("snli-model")
    fitted = Majority().fit(splits_of(data, 0), PredictorSettings(), tmp_path)  # type: ignore[arg-type]
    found = judge(fitted.test, flat_targets(data.level, data.test))
    paper = next(each for each in DIFFICULTIES if (each.level, each.model) == ("sentence", "Majority"))
    ours = [100 * (value or 0.0) for value in (found.precision, found.recall, found.f1)]
    assert ours == pytest.approx([paper.precision, paper.recall, paper.f1], abs=0.5)
