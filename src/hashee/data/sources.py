"""Where the rows of a split come from: a file, or a dataset of the `datasets` package."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

from hashee.data.row_files import Row, ending_of, location_of
from hashee.data.texts import read_rows
from hashee.errors import InputError

_BATCH = 1000


class Source(Protocol):
    """One split, wherever it is stored; `rows` reads it again each time, row by row."""

    @property
    def name(self) -> str:
        """What messages call it."""

    @property
    def unit(self) -> str:
        """What is numbered: "line" or "row"."""

    @property
    def identity(self) -> object:
        """Equal for two sources of the same rows."""

    @property
    def numbers_are_text(self) -> bool:
        """Whether every cell is a string, numbers included."""

    def columns(self) -> tuple[str, ...]:
        """Return the names of its columns."""

    def rows(self, columns: Sequence[str]) -> Iterator[Row]:
        """Stream the cells of some columns, each row with its number."""

    def location(self, number: int) -> str:
        """Return where a row is, for messages."""

    def class_names(self, column: str) -> tuple[str, ...] | None:
        """Return what the numbers in a column stand for, if the data say so."""


@dataclass(frozen=True)
class FileSource:
    """A `.jsonl`, `.csv`, `.tsv` (each also `.gz`) or `.parquet` file."""

    path: Path
    header: tuple[str, ...] = ()
    """Columns of a file without a header line."""
    published: bool = False
    """Whether it is a benchmark's: then a `.txt` is a `.tsv`, whose cells may be quoted as in a `.csv`."""

    @property
    def name(self) -> str:
        return str(self.path)

    @property
    def unit(self) -> str:
        return "row" if self.ending == ".parquet" else "line"

    @property
    def identity(self) -> object:
        return self.path.resolve()

    @property
    def ending(self) -> str:
        """The format, `.gz` left out."""
        ending = ending_of(self.path)
        return ".tsv" if ending == ".txt" and self.published else ending

    @property
    def numbers_are_text(self) -> bool:
        return self.ending in (".csv", ".tsv")

    def columns(self) -> tuple[str, ...]:
        if self.header:
            return self.header
        found: list[str] = []

        def look(columns: Sequence[str]) -> tuple[str, ...]:
            found.extend(columns)
            return ()

        try:
            next(read_rows(self.path, look, ending=self.ending), None)
        except InputError:
            # What is wrong with the columns explains more than the first row that does not fit them.
            if not found:
                raise
        if not found:
            raise InputError(f"{self.path} is empty; it needs a row for each example")
        return tuple(found)

    def rows(self, columns: Sequence[str]) -> Iterator[Row]:
        rows = read_rows(self.path, lambda _: tuple(columns), ending=self.ending, header=self.header or None)
        if not self.published or self.ending != ".tsv":
            return rows
        return ((number, tuple(map(_unquoted, cells))) for number, cells in rows)

    def location(self, number: int) -> str:
        return location_of(self.path, number)

    def class_names(self, column: str) -> tuple[str, ...] | None:
        if self.ending != ".parquet":
            return None
        import pyarrow.parquet  # noqa: PLC0415

        # The Hub's parquet files carry the features of their dataset.
        metadata = pyarrow.parquet.read_schema(self.path).metadata or {}
        try:
            feature = json.loads(metadata[b"huggingface"])["info"]["features"][column]
            names = feature.get("feature", feature)["names"]
        except (KeyError, TypeError, ValueError, AttributeError):
            return None
        return tuple(names)


@dataclass(frozen=True, eq=False)
class DatasetSource:
    """A `datasets.Dataset`."""

    name: str
    dataset: Any

    @property
    def unit(self) -> str:
        return "row"

    @property
    def identity(self) -> object:
        return id(self.dataset)

    @property
    def numbers_are_text(self) -> bool:
        return False

    def columns(self) -> tuple[str, ...]:
        return tuple(self.dataset.column_names)

    def rows(self, columns: Sequence[str]) -> Iterator[Row]:
        # A format such as "torch" would turn plain cells into tensors.
        plain = self.dataset.with_format(None).select_columns(list(dict.fromkeys(columns)))
        batches = (zip(*(batch[name] for name in columns), strict=True) for batch in plain.iter(_BATCH))
        return enumerate(chain.from_iterable(batches), start=1)

    def location(self, number: int) -> str:
        return f"{self.name}, row {number}"

    def class_names(self, column: str) -> tuple[str, ...] | None:
        feature = self.dataset.features[column]
        names = getattr(getattr(feature, "feature", feature), "names", None)
        return None if names is None else tuple(names)


def is_dataset(value: object) -> bool:
    """Tell whether a value is a `datasets.Dataset`, without importing that package."""
    return all(hasattr(value, name) for name in ("column_names", "features", "select_columns", "__len__"))


def _unquoted(cell: str) -> str:
    """Return a cell without the quotes of a CSV writer, which puts them only around what has quotes inside."""
    inner = cell[1:-1]
    is_quoted = len(cell) > 1 and cell[0] == cell[-1] == '"' and '""' in inner and '"' not in inner.replace('""', "")
    return inner.replace('""', '"') if is_quoted else cell
