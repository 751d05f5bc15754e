"""Files of predictions as the GLUE and ELUE leaderboards take them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hashee.data.registry import layout_of
from hashee.data.task import Task
from hashee.data.task_types import type_of
from hashee.data.texts import PathLike
from hashee.errors import InputError
from hashee.files import replaced_atomically


def write_submission(path: PathLike, task: Task, predictions: Sequence[Any], *, names: bool | None = None) -> Path:
    """Write `index<tab>prediction` rows in the order of the test set, and return the file.

    path: the file; in a folder that exists, it gets the benchmark's name for it (`SST-2.tsv`).
    names: whether classes are written by name rather than number; by default as is usual for the task (numbers for
    SST-2, IMDb and MRPC). Scores have three decimals.
    """
    layout = layout_of(task)
    if names is None:
        names = layout is None or layout.submits_names
    as_field = type_of(task).submission_field
    lines = [f"{index}\t{as_field(task, index, each, names)}\n" for index, each in enumerate(predictions)]
    if not lines:
        raise InputError(f"there are no predictions of {task.name} to write")
    path = Path(path)
    if path.is_dir():
        path = path / f"{task.name if layout is None else layout.folder}.tsv"
    with replaced_atomically(path) as temporary:
        temporary.write_text("index\tprediction\n" + "".join(lines), encoding="utf-8", newline="\n")
    return path
