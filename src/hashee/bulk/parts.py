"""The folder that a job writes: parts that are there as a whole or not at all, and the rows that were rejected."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hashee.bulk.reading import Part, Reject
from hashee.bulk.settings import Format
from hashee.files import replaced_atomically, sync
from hashee.packages import require

REJECTS = "rejects.jsonl"
_PENDING = ".rejects"
"""Sub-folder with the rejects of each part until all parts are there."""
_DIGITS = 8
"""Of the numbers of embeddings in JSON; parquet holds them as they are."""


@dataclass(frozen=True)
class PartFolder:
    """Where parts are written. Writing one again gives the same bytes under the same name, so it may happen twice."""

    folder: Path
    format: Format
    named: bool
    """Whether each row says which file it is from: the input is a folder."""
    unit: str
    """What the number of a row is called."""

    def path(self, name: str) -> Path:
        """Return where the part of a name is."""
        return self.folder / f"{name}.{self.format}"

    def is_done(self, name: str) -> bool:
        """Tell whether a part is there."""
        return self.path(name).exists()

    def names(self) -> set[str]:
        """Return the names of the parts that are there."""
        return {path.stem for path in self.folder.glob(f"part-*.{self.format}")}

    def write(self, part: Part, fields: Sequence[dict[str, Any]]) -> None:
        """Write a part. fields: JSON values of each of its rows; an embedding is an array (width,)."""
        if part.rejects:
            # Before the part itself: a part that is there has its rejects there.
            with replaced_atomically(self.folder / _PENDING / f"{part.name}.jsonl") as temporary:
                temporary.write_text("".join(json_line(asdict(each)) for each in part.rejects), encoding="utf-8")
        rows = [self._about(row) | found for row, found in zip(part.rows, fields, strict=True)]
        with replaced_atomically(self.path(part.name)) as temporary:
            if self.format is Format.jsonl:
                temporary.write_text("".join(map(json_line, rows)), encoding="utf-8")
            else:
                _write_parquet(temporary, rows)

    def _about(self, row: Any) -> dict[str, Any]:
        return ({"file": row.file} if self.named else {}) | {self.unit: row.number}

    def gather_rejects(self) -> None:
        """Put the rejects of all parts into one file, in the order of the rows."""
        with replaced_atomically(self.folder / REJECTS) as temporary, temporary.open("wb") as whole:
            for path in sorted((self.folder / _PENDING).glob("part-*.jsonl")):
                with path.open("rb") as file:
                    shutil.copyfileobj(file, whole)

    def first_reject(self) -> Reject | None:
        """Return the first row that was rejected, once they are gathered."""
        with (self.folder / REJECTS).open(encoding="utf-8") as file:
            line = file.readline()
        return Reject(**json.loads(line)) if line else None

    def remove_leftovers(self, rejects: bool) -> None:
        """Remove what a killed run was writing. rejects: those of each part too, which are gathered by now."""
        for path in self.folder.glob(".*"):
            if path.is_file():
                path.unlink(missing_ok=True)
        if rejects:
            shutil.rmtree(self.folder / _PENDING, ignore_errors=True)
        else:
            for path in (self.folder / _PENDING).glob(".*"):
                path.unlink(missing_ok=True)
        sync(self.folder)


def json_line(values: dict[str, Any]) -> str:
    """Return JSON values, with an array for an embedding, as one line."""
    return json.dumps(values, ensure_ascii=False, allow_nan=False, default=_as_list) + "\n"


def _as_list(array: Any) -> Any:
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{type(array).__name__} is no JSON value")
    return array.astype(np.float64).round(_DIGITS).tolist()


def _write_parquet(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    pyarrow = require("pyarrow", "parquet", "writing parquet")
    parquet = require("pyarrow.parquet", "parquet", "writing parquet")
    names = list(rows[0]) if rows else []
    columns = {name: _column(pyarrow, name, [row[name] for row in rows]) for name in names}
    parquet.write_table(pyarrow.table(columns), path)


def _column(pyarrow: Any, name: str, values: list[Any]) -> Any:
    """Return a column of a type that depends on its name and the model, never on the values of one part."""
    if name == "embedding":
        flat = np.concatenate(values)
        return pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(flat, pyarrow.float32()), len(values[0]))
    text, number = pyarrow.string(), pyarrow.float64()
    types = {"file": text, "line": pyarrow.int64(), "row": pyarrow.int64(), "label": text, "score": number}
    types |= {"labels": pyarrow.list_(text), "words": pyarrow.list_(text), "tags": pyarrow.list_(text)}
    types |= {"states": pyarrow.list_(pyarrow.list_(pyarrow.float32()))}
    if name == "scores" and isinstance(values[0], dict):
        types["scores"] = pyarrow.struct([(label, number) for label in values[0]])
    return pyarrow.array(values, types.get(name, pyarrow.list_(number)))
