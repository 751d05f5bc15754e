"""Teachers: a dense model's logits for the training examples, computed once and stored, or the model itself."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from hashee.data.tokenized import Tokenized
from hashee.files import replaced_atomically
from hashee.training.evaluation import logits_for
from hashee.training.outputs import Batch, Need, Outputs, outputs_of
from hashee.training.processes import Processes

Array = NDArray[Any]


class Teacher(Protocol):
    """Gives the outputs that a student learns from."""

    def outputs(self, batch: Batch) -> Outputs:
        """Return the teacher's outputs, on the device of the batch."""


@dataclass(frozen=True)
class StoredLogits:
    """A teacher's logits, computed in advance; hidden states are not stored."""

    logits: list[Array]
    """(labels,) for each training example, or for tags (words, labels)."""
    starts: list[Array] | None
    """For tags: the first token of each word, -1 for a word that was cut off; (words,) for each example."""

    def outputs(self, batch: Batch) -> Outputs:
        """Return the stored logits of the examples."""
        rows = [self.logits[index] for index in batch.indices]
        if self.starts is None:
            found = np.stack(rows)
        else:
            kept = [row[self.starts[index] >= 0] for row, index in zip(rows, batch.indices, strict=True)]
            found = np.concatenate(kept)
        return Outputs(torch.from_numpy(found).to(batch.items.device))


@dataclass(frozen=True)
class RunningTeacher:
    """A model that runs in every step, because the hidden states of all examples are too many to store."""

    model: Any
    needs: Need

    def outputs(self, batch: Batch) -> Outputs:
        """Run the model on the batch, without dropout and gradients."""
        self.model.eval()
        with torch.no_grad():
            return outputs_of(self.model, batch, self.needs)


def teacher_logits(path: Path, fingerprint: str, teacher: Any, train: Tokenized, processes: Processes) -> list[Array]:
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
