"""The answers of a dense teacher to the training examples, computed once and kept."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from hashee.files import replaced_atomically
from hashee.fitting.evaluation import logits_for
from hashee.fitting.processes import Processes
from hashee.tasks.encoding import Encoded

Array = NDArray[Any]


def teacher_logits(path: Path, fingerprint: str, teacher: Any, train: Encoded, processes: Processes) -> list[Array]:
    """Return a model's logits for each training example, from the file if it is for the same teacher and examples.

    (labels,) for each text, or for tags (words, labels).
    """
    known = processes.main_only(lambda: _read(path, fingerprint))
    if known is not None:
        return known
    logits = logits_for(teacher, train, processes)
    processes.main_only(lambda: _write(path, fingerprint, logits))
    return logits


def _read(path: Path, fingerprint: str) -> list[Array] | None:
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="np") as file:
            if (file.metadata() or {}).get("fingerprint") != fingerprint:
                return None
            logits, lengths = file.get_tensor("logits"), file.get_tensor("lengths")
    except SafetensorError:
        return None
    rows = np.split(logits, np.cumsum(np.abs(lengths))[:-1])
    return [row if length >= 0 else row[0] for row, length in zip(rows, lengths, strict=True)]


def _write(path: Path, fingerprint: str, logits: list[Array]) -> None:
    # Rows of words have their number; a single row for a text has -1.
    lengths = np.array([len(row) if row.ndim == 2 else -1 for row in logits], dtype=np.int64)
    arrays = {"logits": np.concatenate([np.atleast_2d(row) for row in logits]), "lengths": lengths}
    with replaced_atomically(path) as temporary:
        save_file(arrays, temporary, metadata={"fingerprint": fingerprint})
