"""Files of lines that survive a kill: they are appended to a draft, and a run goes on behind the last whole one."""

import gzip
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hashee.errors import InputError
from hashee.files import read_json, replaced_atomically, sync, write_json
from hashee.packages import require

T = TypeVar("T")
_PARQUET_ROWS = 4096
_COMPLETE = "complete"
"""Entry of a note: every line of the draft is there."""


@dataclass(frozen=True)
class LineFile:
    """A file of JSON lines, one for each row that is read, in their order.

    Until it is complete it is `<name>.part`, and `<name>.part.json` says what it was begun with.
    """

    path: Path
    about: Mapping[str, Any]
    """JSON values that every line depends on: model, input and options."""
    every: int = 256
    """Lines between two times that the disk is waited for."""

    @property
    def draft(self) -> Path:
        """The file while it is not complete."""
        return self.path.with_name(f"{self.path.name}.part")

    @property
    def note(self) -> Path:
        """What the draft was begun with."""
        return self.path.with_name(f"{self.path.name}.part.json")

    def begin(self, resume: bool) -> int | None:
        """Return how many lines of the draft are there already, 0 for a new one; None if the file is complete."""
        if self.draft.exists():
            if not resume:
                raise InputError(
                    f"{self.draft} holds what an interrupted run has written; go on with --resume, or delete it"
                )
            self._check_note()
            if (read_json(self.note) or {}).get(_COMPLETE):
                self._put_in_place()
                return None
            return self._whole_lines()
        if resume and self.path.exists():
            self.note.unlink(missing_ok=True)
            return None
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_json(self.note, dict(self.about))
        return 0

    def _check_note(self) -> None:
        begun = read_json(self.note)
        if begun is None:
            raise InputError(f"{self.note} is missing or damaged, so nobody knows what wrote {self.draft}; delete it")
        for name, value in self.about.items():
            if begun.get(name) != value:
                raise InputError(
                    f"{self.draft} was begun with another {name} ({begun.get(name)!r}, now {value!r}); repeat the "
                    f"command as it was, or delete that file"
                )

    def _whole_lines(self) -> int:
        """Count the whole lines of the draft and cut off what a kill left of another."""
        if not self.draft.exists():
            return 0
        lines = end = 0
        with self.draft.open("r+b") as file:
            for line in file:
                if not _is_whole(line):
                    break
                lines, end = lines + 1, end + len(line)
            file.truncate(end)
        return lines

    def write(self, rows: Iterable[T], done: int, lines_for: Callable[[Iterator[T]], Iterator[dict[str, Any]]]) -> None:
        """Append a line for each row behind the first `done`, then put the file in its place.

        lines_for: from rows to the JSON values of their lines, one for each, in order.
        """
        rest = iter(rows)
        for _ in islice(rest, done):
            pass
        with self.draft.open("a", encoding="utf-8") as file:
            for number, values in enumerate(lines_for(rest), start=1):
                file.write(json.dumps(values, ensure_ascii=False, allow_nan=False) + "\n")
                if number % self.every == 0:
                    file.flush()
                    sync(self.draft)
        sync(self.draft)
        # From here on, a run that goes on has nothing left to write.
        write_json(self.note, dict(self.about) | {_COMPLETE: True})
        self._put_in_place()

    def _put_in_place(self) -> None:
        if self.path.suffix == ".gz":
            with (
                replaced_atomically(self.path) as temporary,
                self.draft.open("rb") as plain,
                gzip.open(temporary, "wb") as packed,
            ):
                shutil.copyfileobj(plain, packed)
            self.draft.unlink()
        else:
            self.draft.replace(self.path)
        self.note.unlink(missing_ok=True)
        sync(self.path.parent)


@dataclass(frozen=True)
class VectorFile(LineFile):
    """A `.npy` or `.parquet` file of vectors, one for each row that is read; the draft holds their bare numbers."""

    width: int = 1
    numbered: str = "line"
    """Name of the column with the numbers of the rows, in `.parquet` files."""

    @property
    def _row_bytes(self) -> int:
        return 4 * self.width

    def _whole_lines(self) -> int:
        """Count the whole vectors of the draft and cut off what a kill left of another."""
        if not self.draft.exists():
            return 0
        rows = self.draft.stat().st_size // self._row_bytes
        os.truncate(self.draft, rows * self._row_bytes)
        return rows

    def write_vectors(self, vectors: Iterable[NDArray[Any]], numbers: Callable[[], Iterable[int]]) -> None:
        """Append vectors behind those that are there, (width,) each, then put the file in its place.

        numbers: returns the number of every row of the file, once more from the first.
        """
        with self.draft.open("ab") as file:
            for count, vector in enumerate(vectors, start=1):
                file.write(np.asarray(vector, dtype="<f4").tobytes())
                if count % self.every == 0:
                    file.flush()
                    sync(self.draft)
        with replaced_atomically(self.path) as temporary:
            rows = self.draft.stat().st_size // self._row_bytes
            held: NDArray[Any] = np.zeros((0, self.width), dtype="<f4")
            if rows:
                held = np.memmap(self.draft, dtype="<f4", mode="r", shape=(rows, self.width))
            if self.path.suffix == ".npy":
                with temporary.open("wb") as file:
                    np.save(file, held)
            else:
                self._write_parquet(temporary, held, numbers())
        self.draft.unlink()
        self.note.unlink(missing_ok=True)

    def _write_parquet(self, path: Path, held: NDArray[Any], numbers: Iterable[int]) -> None:
        pyarrow = require("pyarrow", "parquet", f"writing {self.path}")
        parquet = require("pyarrow.parquet", "parquet", f"writing {self.path}")
        vector = pyarrow.list_(pyarrow.float32(), self.width)
        schema = pyarrow.schema([(self.numbered, pyarrow.int64()), ("embedding", vector)])
        counted = iter(numbers)
        with parquet.ParquetWriter(path, schema) as writer:
            for first in range(0, len(held), _PARQUET_ROWS):
                rows = np.ascontiguousarray(held[first : first + _PARQUET_ROWS])
                flat = pyarrow.array(rows.ravel(), type=pyarrow.float32())
                columns = [list(islice(counted, len(rows))), pyarrow.FixedSizeListArray.from_arrays(flat, self.width)]
                writer.write_table(pyarrow.table(dict(zip(schema.names, columns, strict=True)), schema=schema))


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_whole(line: bytes) -> bool:
    try:
        return line.endswith(b"\n") and isinstance(json.loads(line), dict)
    except ValueError:
        return False
