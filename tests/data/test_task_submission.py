"""Prediction files are those that the leaderboards take, and are never half written."""

from pathlib import Path

import numpy as np
import pytest

from hashee.data import TASKS, Kind, Task, write_submission
from hashee.errors import InputError


def written(path: Path, name: str, predictions: object, **options: bool) -> str:
    return write_submission(path, TASKS[name], predictions, **options).read_bytes().decode()  # type: ignore[arg-type]


def test_classes_are_numbers_or_names_as_each_task_has_it(tmp_path: Path) -> None:
    path = tmp_path / "new" / "out.tsv"
    assert written(path, "sst2", [1, 0]) == "index\tprediction\n0\t1\n1\t0\n"
    assert written(path, "mrpc", np.array([0, 1])) == "index\tprediction\n0\t0\n1\t1\n"
    assert written(path, "snli", [0, 1, 2]) == "index\tprediction\n0\tentailment\n1\tneutral\n2\tcontradiction\n"
    assert written(path, "scitail", [1, 0]) == "index\tprediction\n0\tentailment\n1\tneutral\n"
    assert written(path, "snli", [2], names=False) == "index\tprediction\n0\t2\n"
    assert written(path, "sst2", [1], names=True) == "index\tprediction\n0\tpositive\n"


def test_scores_have_three_decimals(tmp_path: Path) -> None:
    assert written(tmp_path / "a.tsv", "stsb", [2.0, 3.14159, np.float32(0.1)]) == (
        "index\tprediction\n0\t2.000\n1\t3.142\n2\t0.100\n"
    )


def test_in_a_folder_the_file_is_called_as_the_benchmark_is(tmp_path: Path) -> None:
    assert write_submission(tmp_path, TASKS["stsb"], [1.0]) == tmp_path / "STS-B.tsv"
    mine = Task("mine", Kind.CLASSES, ("a", "b"), "accuracy")
    assert write_submission(tmp_path, mine, [1]).read_text() == "index\tprediction\n0\tb\n"


@pytest.mark.parametrize(
    ("name", "predictions", "message"),
    [
        ("sst2", [0, 2], "prediction 1 of sst2 is 2; it must be a class, 0 to 1"),
        ("sst2", [0.5], "must be a class"),
        ("sst2", ["positive"], "must be a class"),
        ("stsb", [float("nan")], "finite number"),
        ("stsb", [], "no predictions"),
        ("wnut17", [(0, 1)], "leaderboards take classes and scores"),
    ],
)
def test_predictions_that_are_none_leave_the_old_file(
    tmp_path: Path, name: str, predictions: list[object], message: str
) -> None:
    path = tmp_path / "out.tsv"
    path.write_text("old")
    with pytest.raises(InputError, match=message):
        write_submission(path, TASKS[name], predictions)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
