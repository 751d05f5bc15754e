"""The files that a job reads: found, fingerprinted, and put into shards."""

import gzip
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import xxhash

from hashee.data.row_files import ENDINGS, ending_of
from hashee.data.texts import read_leniently
from hashee.errors import InputError
from hashee.packages import require

_CHUNK = 1 << 20


@dataclass(frozen=True)
class InputFile:
    """A file of rows, and what tells it from another one."""

    name: str
    """Its path from the folder that was named, or its name alone."""
    size: int
    digest: str
    """XXH3 (128 bits) of all its bytes: reading them takes less than a thousandth of the time of scoring them."""
    lines: int
    """Lines, or rows of parquet: an upper bound of its rows, for the estimate of the time left."""


@dataclass(frozen=True)
class Shard:
    """Consecutive files that are read one after the other; a part holds rows of one shard."""

    number: int
    files: tuple[str, ...]


def find_files(texts: Path) -> list[Path]:
    """Return a file, or the files of rows in a folder and those below it in the order of their names.

    Names that begin with `.` or `_`, as other systems mark files that hold no rows, and other endings are left out.
    """
    if not texts.exists():
        raise InputError(f"{texts} does not exist")
    if texts.is_file():
        ending_of(texts)
        return [texts]
    found = [path for path in texts.rglob("*") if path.is_file() and _holds_rows(path, texts)]
    if not found:
        raise InputError(f"{texts} holds no file that ends in {', '.join(ENDINGS)} (all but .parquet also .gz)")
    return sorted(found, key=lambda path: path.relative_to(texts).as_posix())


def _holds_rows(path: Path, folder: Path) -> bool:
    if any(part.startswith((".", "_")) for part in path.relative_to(folder).parts):
        return False
    try:
        ending_of(path)
    except InputError:
        return False
    return True


def name_of(path: Path, texts: Path) -> str:
    """Return what a file is called in the output."""
    return path.name if texts == path else path.relative_to(texts).as_posix()


def path_of(name: str, texts: Path) -> Path:
    """Return where the file of a name is."""
    return texts if texts.is_file() else texts / name


def fingerprint(path: Path, texts: Path) -> InputFile:
    """Read a file once: its digest and its lines."""
    digest = xxhash.xxh3_128()
    lines = 0
    last = b"\n"
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            lines += chunk.count(b"\n")
            last = chunk[-1:]
    lines += last != b"\n"
    if path.suffix.lower() == ".gz":
        lines = _lines_of_gzip(path)
    elif path.suffix.lower() == ".parquet":
        lines = _rows_of_parquet(path)
    return InputFile(name_of(path, texts), path.stat().st_size, digest.hexdigest(), lines)


def _lines_of_gzip(path: Path) -> int:
    lines = 0
    try:
        with gzip.open(path, "rb") as file:
            while chunk := file.read(_CHUNK):
                lines += chunk.count(b"\n")
    except (OSError, EOFError, zlib.error):
        pass  # its rows are read as far as they go, and the damage is told then
    return lines


def _rows_of_parquet(path: Path) -> int:
    parquet = require("pyarrow.parquet", "parquet", f"reading {path}")
    try:
        return int(parquet.read_metadata(path).num_rows)
    except Exception as error:
        raise InputError(f"{path} is not a readable parquet file; copy it again") from error


def check_columns(paths: Sequence[Path], column: str | None, pair_column: str | None) -> None:
    """Refuse files that lack the columns, and single texts among pairs, before anything is scored."""
    forms: dict[bool, Path] = {}
    for path in paths:
        # A row that cannot be read says nothing about the file; it is rejected later.
        rows = (text for _, text in read_leniently(path, column, pair_column))
        first = next((text for text in rows if not isinstance(text, InputError)), None)
        if first is not None:
            forms.setdefault(isinstance(first, str), path)
    if len(forms) == 2:
        raise InputError(
            f"{forms[True]} holds single texts but {forms[False]} pairs; name --column, or score them apart"
        )


def shards_of(files: Sequence[InputFile], part_rows: int) -> list[Shard]:
    """Put files into shards: each as many as fill a part, so that many small files do not become many small parts."""
    return [Shard(number, tuple(names)) for number, names in enumerate(_groups(files, part_rows))]


def _groups(files: Sequence[InputFile], part_rows: int) -> Iterator[list[str]]:
    group: list[str] = []
    lines = 0
    for file in files:
        group.append(file.name)
        lines += file.lines
        if lines >= part_rows:
            yield group
            group, lines = [], 0
    if group:
        yield group


def as_json(files: Sequence[InputFile]) -> list[dict[str, Any]]:
    """Return files as JSON values."""
    return [asdict(file) for file in files]
