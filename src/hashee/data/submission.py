"""Files of predictions as the GLUE and ELUE leaderboards take them."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hashee.data.registry import layout_of
from hashee.data.task import Kind, Task
from hashee.data.texts import PathLike
from hashee.errors import InputError
from hashee.files import replaced_atomically


def write_submission(path: PathLike, task: Task, predictions: Sequence[Any], *, names: bool | None = None) -> Path:
    """Write `index<tab>prediction` rows in the order of the test set, and return the file.

    path: the file; in a folder that exists, it is called as the benchmark calls it (`SST-2.tsv`).
    names: whether classes are written by name rather than number; otherwise as is usual for the task (numbers for
    SST-2, IMDb and MRPC). Scores have three decimals.
    """
    if task.kind not in (Kind.CLASSES, Kind.SCORE):
        raise InputError(f"{task.name} is {task.kind}; leaderboards take classes and scores")
    layout = layout_of(task)
    if names is None:
        names = layout is None or layout.submits_names
    lines = [f"{index}\t{_as_field(task, prediction, names, index)}\n" for index, prediction in enumerate(predictions)]
    if not lines:
        raise InputError(f"there are no predictions of {task.name} to write")
    path = Path(path)
    if path.is_dir():
        path = path / f"{task.name if layout is None else layout.folder}.tsv"
    with replaced_atomically(path) as temporary:
        temporary.write_text("index\tprediction\n" + "".join(lines), encoding="utf-8", newline="\n")
    return path


def _as_field(task: Task, prediction: Any, names: bool, index: int) -> str:
    try:
        number = float(prediction)
    except (TypeError, ValueError):
        number = float("nan")
    if task.kind is Kind.SCORE and math.isfinite(number):
        return f"{number:.3f}"
    if task.kind is Kind.CLASSES and number in range(len(task.labels)):
        return task.labels[int(number)] if names else str(int(number))
    expected = "a finite number" if task.kind is Kind.SCORE else f"a class, 0 to {len(task.labels) - 1}"
    raise InputError(f"prediction {index} of {task.name} is {prediction!r}; it must be {expected}")
