"""Every kind of task has a type, which owns its targets, predictions, losses and metrics."""

import re
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers.pipelines import PIPELINE_REGISTRY

from hashee.data import METRICS, Kind, Task
from hashee.data.predictions import predictions, scores
from hashee.data.task_types import TASK_TYPES, type_of
from import_graph import DESIGN, MODULES

NAN = float("nan")
CASES: dict[Kind, tuple[tuple[str, ...], str, list[Any], list[Any]]] = {
    Kind.CLASSES: (("bad", "good"), "accuracy", [[0.1, 0.2], [3.0, -1.0]], [1, 0]),
    Kind.LABELS: (("animal", "good"), "micro_f1", [[0.1, -0.2], [3.0, 1.0]], [(1, 0), (1, 1)]),
    Kind.SCORE: ((), "pearson_and_spearman", [[0.5], [2.0], [1.0]], [0.5, 2.0, 1.0]),
    Kind.TAGS: (
        ("B-animal", "O"),
        "tag_accuracy",
        [[[1.0, 0.0], [NAN, NAN]], [[0.0, 1.0]]],
        [(0, 1), (1,)],
    ),
    Kind.SUMMARIES: ((), "rouge1", ["a dull film", "a cat"], ["a dull film", "a cat"]),
}
_WITH_LOGITS = [kind for kind in Kind if not TASK_TYPES[kind].writes_text]


@pytest.mark.parametrize("kind", Kind)
def test_logits_become_predictions_in_the_form_of_the_targets(kind: Kind) -> None:
    labels, metric, logits, targets = CASES[kind]
    assert metric in METRICS
    task = Task("mine", kind, labels, metric)
    rows = [row if isinstance(row, str) else np.array(row, dtype=np.float32) for row in logits]
    assert predictions(task, rows) == targets
    assert scores(task, rows, targets)["score"] == pytest.approx(1.0)
    arrays = type_of(task).targets(targets)
    assert [np.asarray(row).tolist() for row in arrays] == [np.asarray(row).tolist() for row in targets]


@pytest.mark.parametrize("kind", Kind)
def test_every_type_has_a_head_and_a_pipeline_in_transformers(kind: Kind) -> None:
    assert hasattr(transformers, f"AutoModel{TASK_TYPES[kind].head}")
    # Of texts that are written, transformers 5 has the models and no pipeline.
    assert TASK_TYPES[kind].writes_text or TASK_TYPES[kind].pipeline in PIPELINE_REGISTRY.get_supported_tasks()


@pytest.mark.parametrize("kind", Kind)
def test_every_type_has_its_metrics(kind: Kind) -> None:
    task_type = TASK_TYPES[kind]
    assert task_type.kind is kind
    assert {name for name, metric in METRICS.items() if metric.kind is kind} == set(task_type.metrics)
    for labels in (("O", "B-x", "I-x"), ("DET", "NOUN")):
        assert task_type.default_metric(labels) in task_type.metrics


@pytest.mark.parametrize("kind", Kind)
def test_losses_are_sums_and_fall_towards_the_targets(kind: Kind) -> None:
    task_type = TASK_TYPES[kind].smoothed(0.0)
    targets = torch.tensor({Kind.LABELS: [[1, 0], [0, 1]], Kind.SCORE: [1, -1]}.get(kind, [0, 1]))
    right = torch.tensor([[1.0], [-1.0]]) if kind is Kind.SCORE else torch.tensor([[4.0, -4.0], [-4.0, 4.0]])
    for loss in (
        lambda logits, rows: task_type.loss(logits, targets[rows]),
        lambda logits, rows: task_type.distillation_loss(logits, right[rows], 2.0),
    ):
        both, parts = loss(-right, slice(None)), [loss(-right[row], row) for row in (slice(0, 1), slice(1, 2))]
        assert torch.allclose(both, parts[0] + parts[1]), "a batch that is split has the same loss"
        assert loss(right, slice(None)) < loss(right / 2, slice(None)) < both


@pytest.mark.parametrize("kind", _WITH_LOGITS)
def test_the_loss_of_an_example_is_that_of_training(kind: Kind) -> None:
    task_type, (_, _, logits, targets) = TASK_TYPES[kind], CASES[kind]
    for row, target in zip(logits, targets, strict=True):
        rows = torch.tensor(row if kind is Kind.TAGS else [row])
        wanted = torch.tensor(target if kind is Kind.TAGS else [target])
        seen = ~rows[:, 0].isnan()
        learnt = task_type.loss(rows[seen], wanted[seen]) / seen.sum()
        # Squared in training; reports show how far a score is off.
        expected = learnt.sqrt() if kind is Kind.SCORE else learnt
        found = task_type.example_loss(np.array(row, dtype=np.float32), target)
        assert found == pytest.approx(float(expected), abs=1e-6)


@pytest.mark.parametrize("kind", _WITH_LOGITS)
def test_confidence_is_the_least_probability_of_what_is_predicted(kind: Kind) -> None:
    for row in CASES[kind][2]:
        logits = torch.tensor(row)
        found = TASK_TYPES[kind].confidence(np.array(row, dtype=np.float32))
        if kind is Kind.SCORE:
            assert found is None
            continue
        likely = torch.maximum(logits.sigmoid(), (-logits).sigmoid()) if kind is Kind.LABELS else logits.softmax(-1)
        likely = likely if kind is Kind.LABELS else likely.amax(-1)
        assert found == pytest.approx(float(likely[~likely.isnan()].min()), abs=1e-6)
    assert TASK_TYPES[Kind.TAGS].confidence(np.full((2, 3), NAN)) is None, "no word was seen"


@pytest.mark.parametrize("kind", Kind)
def test_agreement_is_whole_with_oneself_and_the_same_both_ways(kind: Kind) -> None:
    agreement, targets = TASK_TYPES[kind].agreement, CASES[kind][3]
    assert agreement(targets, targets).value == 1.0
    others = list(reversed(targets)) if kind is not Kind.TAGS else [(0, 0), (1,)]
    one, other = agreement(targets, others), agreement(others, targets)
    assert one.value == pytest.approx(other.value) and one.value < 1
    assert one.metric == {Kind.SCORE: "pearson", Kind.SUMMARIES: "chrf"}.get(kind, "equal predictions")
    if kind is Kind.TAGS:
        assert one.value == pytest.approx(2 / 3), "of words"


@pytest.mark.parametrize(
    ("kind", "text", "target", "prediction", "names"),
    [
        (Kind.CLASSES, "a", 0, 1, ("bad", "good")),
        (Kind.LABELS, "a", (1, 1), (0, 0), ("animal, good", "none")),
        (Kind.SCORE, "a", 0.12345, 2.0, ("0.123", "2")),
        (Kind.SUMMARIES, "a", "a film", "a story", ("a film", "a story")),
        (Kind.TAGS, ("a", "cat"), (1, 0), (1, 1), ("cat/B-animal", "cat/O")),
        (Kind.TAGS, ("a", "cat"), (1, 0), (1, 0), ("none differs", "none differs")),
    ],
)
def test_reports_name_targets_and_predictions(
    kind: Kind, text: Any, target: Any, prediction: Any, names: tuple[str, str]
) -> None:
    task = Task("mine", kind, CASES[kind][0], CASES[kind][1])
    assert TASK_TYPES[kind].names(task, text, target, prediction) == names


def test_docs_list_every_type() -> None:
    text = (DESIGN.parent / "tasks.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([a-z-]+) \(`(\w+)\.py`\) \| `(\w+)` \|.*\| (.*) \|$", text, flags=re.MULTILINE)
    assert [row[0] for row in rows] == list(TASK_TYPES)
    for kind, file, head, metrics in rows:
        task_type = TASK_TYPES[Kind(kind)]
        assert type(task_type).__module__ == f"hashee.data.task_types.{file}" and task_type.head == head
        assert task_type.default_metric(("O", "B-x")) == re.findall(r"`(\w+)`", metrics)[0]


def test_kinds_are_looked_at_where_types_are_chosen_and_studied_methods_apply_or_not() -> None:
    using = {name for name, path in MODULES.items() if any(f"Kind.{kind.name}" in path.read_text() for kind in Kind)}
    others = {name for name in using if not name.startswith(("hashee.data.task_types.", "hashee.study.methods."))}
    makes_tasks = "hashee.study.difficulty.datasets"
    assert others == {"hashee.data.columns", "hashee.data.kinds", "hashee.data.registry", makes_tasks}
