"""From a shard to parts: so many rows of the input each, whichever machine reads them and how often."""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hashee.bulk.inputs import Shard, path_of
from hashee.data.row_files import location_of
from hashee.data.texts import Text, read_leniently
from hashee.errors import InputError


@dataclass(frozen=True)
class Row:
    """A row that can be scored."""

    file: str
    number: int
    """Of its line (parquet: row), from 1."""
    text: Text


@dataclass(frozen=True)
class Reject:
    """A row that cannot be read, and why."""

    file: str
    row: int
    reason: str


@dataclass(frozen=True)
class Part:
    """Consecutive rows of a shard, which become one file of the output."""

    shard: int
    number: int
    rows: list[Row] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Of its file, without the ending; names sort as the rows of the input do."""
        return part_name(self.shard, self.number)

    def __len__(self) -> int:
        return len(self.rows) + len(self.rejects)

    def to_json(self) -> str:
        """Return the part as JSON, to be sent to another process."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> "Part":
        """Return what `to_json` was called on."""
        values = json.loads(text)
        rows = [Row(row["file"], row["number"], _as_text(row["text"])) for row in values["rows"]]
        return cls(values["shard"], values["number"], rows, [Reject(**each) for each in values["rejects"]])


@dataclass(frozen=True)
class ShardEnd:
    """What a shard held, known once it was read to its end."""

    shard: int
    parts: int = 0
    rows: int = 0
    rejected: int = 0


def part_name(shard: int, number: int) -> str:
    """Return what a part is called."""
    return f"part-{shard:05d}-{number:06d}"


def read_parts(
    shard: Shard, texts: Path, part_rows: int, columns: tuple[str | None, str | None], is_done: Callable[[str], bool]
) -> Iterator[Part | ShardEnd]:
    """Yield the parts of a shard that are not done, then what it held.

    columns: of the text, and of the second text of a pair. is_done: by name, whether a part is there already.
    """
    parts = rows = rejected = 0
    part = Part(shard.number, 0)
    for item in _items(shard, texts, columns):
        if isinstance(item, Row):
            part.rows.append(item)
        else:
            part.rejects.append(item)
        if len(part) == part_rows:
            parts, rows, rejected = parts + 1, rows + len(part.rows), rejected + len(part.rejects)
            if not is_done(part.name):
                yield part
            part = Part(shard.number, parts)
    if len(part):
        parts, rows, rejected = parts + 1, rows + len(part.rows), rejected + len(part.rejects)
        if not is_done(part.name):
            yield part
    yield ShardEnd(shard.number, parts, rows, rejected)


def _items(shard: Shard, texts: Path, columns: tuple[str | None, str | None]) -> Iterator[Row | Reject]:
    for name in shard.files:
        path = path_of(name, texts)
        number = 0
        rows = read_leniently(path, *columns)
        try:
            for number, text in rows:
                if isinstance(text, InputError):
                    yield Reject(name, number, str(text).removeprefix(f"{location_of(path, number)}: "))
                else:
                    yield Row(name, number, text)
        except InputError as error:
            # The rest of a file that breaks off, such as a truncated gzip, is rejected as one row.
            yield Reject(name, number + 1, str(error))


def _as_text(value: Any) -> Text:
    return value if isinstance(value, str) else (value[0], value[1])
