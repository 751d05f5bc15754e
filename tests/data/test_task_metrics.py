"""Measures of quality: known values, agreement with scikit-learn, and no NaN or warning for degenerate input."""

import math
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hashee.data import METRICS, TASKS, Kind, Task, score
from hashee.data.spans import is_bio, spans_of
from hashee.errors import InputError

MRPC, STSB, SST2, SNLI = (TASKS[name] for name in ("mrpc", "stsb", "sst2", "snli"))
LABELS = Task("topics", Kind.LABELS, ("a", "b", "c"), "micro_f1")
TAGS = Task("names", Kind.TAGS, ("O", "B-P", "I-P", "B-L", "I-L"), "span_f1")


@pytest.fixture(autouse=True)
def warnings_are_errors() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_accuracy() -> None:
    assert score(SST2, [1, 0, 1, 1], [1, 0, 0, 1]) == {"accuracy": 0.75, "score": 0.75}


def test_mean_of_accuracy_and_f1_counts_class_one_as_positive() -> None:
    # 3 of 5 right; of the 3 predicted and 3 real positives 2 agree.
    measured = score(MRPC, [1, 1, 1, 0, 0], [1, 1, 0, 1, 0])
    assert measured["accuracy"] == pytest.approx(0.6)
    assert measured["f1"] == pytest.approx(2 / 3)
    assert measured["score"] == measured["accuracy_and_f1"] == pytest.approx((0.6 + 2 / 3) / 2)
    assert score(MRPC, [0, 0], [0, 0])["f1"] == 0


def test_macro_f1_and_matthews() -> None:
    measured = score(replace(SNLI, metric="macro_f1"), [0, 1, 2, 2], [0, 1, 1, 2])
    assert measured["macro_f1"] == pytest.approx((1 + 2 / 3 + 2 / 3) / 3) == measured["score"]
    matthews = replace(SST2, metric="matthews")
    assert score(matthews, [1, 1, 0, 0], [1, 0, 0, 0])["matthews"] == pytest.approx(1 / math.sqrt(3))
    assert score(matthews, [1, 1, 1], [1, 0, 1])["score"] == 0
    assert score(matthews, [1, 1], [1, 1])["score"] == 0


def test_correlations() -> None:
    measured = score(STSB, [1.0, 2.0, 3.0, 10.0], [1.0, 2.0, 3.0, 4.0])
    assert measured["spearman"] == pytest.approx(1)
    assert measured["pearson"] == pytest.approx(np.corrcoef([1, 2, 3, 10], [1, 2, 3, 4])[0, 1])
    assert measured["score"] == pytest.approx((measured["pearson"] + measured["spearman"]) / 2)
    for name in ("pearson", "spearman"):
        assert score(replace(STSB, metric=name), [1.0, 2.0], [2.0, 1.0]) == pytest.approx({name: -1, "score": -1})


@pytest.mark.parametrize(
    ("predictions", "targets"),
    [([2.5] * 3, [1.0, 2.0, 3.0]), ([1.0, 2.0, 3.0], [2.0] * 3), ([1.0], [2.0]), ([0.1] * 3, [0.1] * 3)],
)
def test_constants_correlate_with_nothing(predictions: list[float], targets: list[float]) -> None:
    assert set(score(STSB, predictions, targets).values()) == {0.0}


def test_nearly_constant_predictions_do_not_warn() -> None:
    measured = score(STSB, [1e9, 1e9 + 1e-6, 1e9], [1.0, 2.0, 3.0])
    assert all(math.isfinite(value) for value in measured.values())


@given(rows=st.lists(st.tuples(*[st.tuples(*[st.integers(0, 1)] * 3)] * 2), min_size=1, max_size=30))
def test_micro_f1_is_that_of_scikit_learn(rows: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> None:
    from sklearn.metrics import f1_score, precision_score, recall_score

    predictions, targets = zip(*rows, strict=True)
    measured = score(LABELS, predictions, targets)
    for name, function in (("f1", f1_score), ("precision", precision_score), ("recall", recall_score)):
        expected = function(np.array(targets), np.array(predictions), average="micro", zero_division=0)
        assert measured[f"micro_{name}"] == pytest.approx(expected)
    assert measured["exact_match"] == pytest.approx(sum(one == two for one, two in rows) / len(rows))


@pytest.mark.parametrize(
    ("tags", "spans"),
    [
        ("O O", set()),
        ("B-P I-P O B-L", {(0, 2, "P"), (3, 4, "L")}),
        ("B-P B-P", {(0, 1, "P"), (1, 2, "P")}),
        ("B-P I-L", {(0, 1, "P"), (1, 2, "L")}),
        ("O I-P I-P", {(1, 3, "P")}),
        ("I-P B-P I-P", {(0, 1, "P"), (1, 3, "P")}),
        ("B-P I-P I-P", {(0, 3, "P")}),
        ("B I O B", {(0, 2, ""), (3, 4, "")}),
        ("B-creative-work I-creative-work", {(0, 2, "creative-work")}),
    ],
)
def test_spans_of_bio_tags(tags: str, spans: set[tuple[int, int, str]]) -> None:
    assert spans_of(tags.split()) == spans


def test_span_f1_counts_whole_spans() -> None:
    # Right: P at 0-2. Wrong: L is one word short, and P at 5 is not there.
    targets = [(1, 2, 0, 3, 4, 0), (0, 0)]
    predictions = [(1, 2, 0, 3, 0, 1), (0, 0)]
    measured = score(TAGS, predictions, targets)
    assert measured["span_precision"] == pytest.approx(1 / 3)
    assert measured["span_recall"] == pytest.approx(1 / 2)
    assert measured["span_f1"] == measured["score"] == pytest.approx(0.4)
    assert measured["tag_accuracy"] == pytest.approx(6 / 8)
    assert score(TAGS, [(0, 0)], [(0, 0)])["span_f1"] == 0
    assert score(replace(TAGS, metric="tag_accuracy"), [(0, 1)], [(0, 0)])["score"] == 0.5


def test_bio_tags_are_recognised() -> None:
    assert is_bio(("O", "B-P", "I-P")) and is_bio(("B", "I", "O"))
    assert not is_bio(("DET", "NOUN")) and not is_bio(("O",)) and not is_bio(("B-P", "E-P", "O"))


def test_arrays_and_tensors_will_do() -> None:
    assert score(SST2, np.array([1, 0]), torch.tensor([1, 1]))["score"] == 0.5
    assert score(LABELS, torch.tensor([[1, 0, 1]]), [(1, 0, 1)])["score"] == 1
    assert score(TAGS, [np.array([1, 2])], [torch.tensor([1, 2])])["score"] == 1
    assert all(type(value) is float for value in score(STSB, np.array([1, 2, 3]), [1.0, 2.0, 4.0]).values())


@pytest.mark.parametrize(
    ("task", "predictions", "targets", "message"),
    [
        (SST2, [1], [1, 0], "1 predictions for 2 targets"),
        (SST2, [], [], "no predictions"),
        (SST2, [2, 0], [1, 0], "go from 0 to 2; they must be whole numbers from 0 to 1"),
        (SST2, [0.5, 0], [1, 0], "whole numbers"),
        (SST2, [[0.1, 0.9]], [1], "the id of a class"),
        (SST2, ["positive"], [1], "the id of a class"),
        (STSB, [math.nan, 1.0], [1.0, 2.0], "prediction 0 of stsb is not a finite number"),
        (LABELS, [(1, 0)], [(1, 0, 0)], "3 zeros and ones"),
        (TAGS, [(0, 0)], [(0,)], "prediction 0 of names has 2 tags for 1 words"),
        (replace(SNLI, metric="accuracy_and_f1"), [1], [1], "is for two classes; snli has 3"),
        (replace(SST2, metric="bleu"), [1], [1], "'bleu'; there are: accuracy"),
        (replace(SST2, metric="span_f1"), [1], [1], "span_f1 is a metric of tagging, but sst2 is classification"),
        (replace(TAGS, labels=("DET", "NOUN")), [(1,)], [(1,)], "needs BIO tags"),
    ],
)
def test_what_cannot_be_measured_is_refused(task: Task, predictions: Any, targets: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        score(task, predictions, targets)


def test_every_metric_reports_itself() -> None:
    tasks = {Kind.CLASSES: SST2, Kind.SCORE: STSB, Kind.LABELS: LABELS, Kind.TAGS: TAGS}
    tasks |= {Kind.SUMMARIES: Task("news", Kind.SUMMARIES, (), "rouge1")}
    perfect: dict[Kind, list[Any]] = {Kind.CLASSES: [0, 1], Kind.SCORE: [1.0, 2.0], Kind.TAGS: [(1, 2)]}
    perfect |= {Kind.LABELS: [(1, 0, 1), (0, 1, 0)], Kind.SUMMARIES: ["a dull film", "two cats"]}
    for name, metric in METRICS.items():
        answers = perfect[metric.kind]
        measured = score(replace(tasks[metric.kind], metric=name), answers, answers)
        assert measured[name] == measured["score"] == pytest.approx(1)
