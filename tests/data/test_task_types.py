"""Every kind of task has a type, whose predictions are of the kind of its targets."""

from typing import Any

import numpy as np
import pytest
import transformers

from hashee.data import METRICS, Kind, Task
from hashee.data.predictions import predictions, scores
from hashee.data.task_types import TASK_TYPES

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
}


@pytest.mark.parametrize("kind", Kind)
def test_logits_become_predictions_of_the_kind_of_the_targets(kind: Kind) -> None:
    labels, metric, logits, targets = CASES[kind]
    assert metric in METRICS
    task = Task("mine", kind, labels, metric)
    rows = [np.array(row, dtype=np.float32) for row in logits]
    assert predictions(task, rows) == targets
    assert scores(task, rows, targets)["score"] == pytest.approx(1.0)
    arrays = TASK_TYPES[kind].targets(targets)
    assert [np.asarray(row).tolist() for row in arrays] == [np.asarray(row).tolist() for row in targets]


@pytest.mark.parametrize("kind", Kind)
def test_every_type_has_a_head_in_transformers(kind: Kind) -> None:
    assert hasattr(transformers, f"AutoModel{TASK_TYPES[kind].head}")
