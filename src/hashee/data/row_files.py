"""Reading rows from files of every format, one at a time; a row that cannot be read is an error in its place."""

import csv
import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, cast

from hashee.errors import InputError, first_line

# Given the columns there are, return the columns to read.
ChooseColumns: TypeAlias = Callable[[Sequence[str]], tuple[str, ...]]
# (line or row number from 1, the values of the chosen columns)
Row: TypeAlias = tuple[int, tuple[Any, ...]]
# The same, or what is wrong with the row.
FoundRow: TypeAlias = tuple[int, tuple[Any, ...] | InputError]

ENDINGS = (".txt", ".jsonl", ".csv", ".tsv", ".parquet")
# The csv module stops at 131,072 characters a field, which long documents exceed; a limit stays, because an
# unclosed quote would otherwise swallow the rest of the file into memory.
_LONGEST_CSV_FIELD = 1 << 26
_PARQUET_ROWS = 256
_PARQUET_BUFFER = 1 << 20


def _jsonl_rows(path: Path, choose: ChooseColumns) -> Iterator[FoundRow]:
    chosen: tuple[str, ...] | None = None
    for number, line in read_lines(path):
        if isinstance(line, InputError):
            yield number, line
        elif line.strip():
            try:
                row = _json_object(path, number, line)
                chosen = chosen or choose(tuple(row))
                yield number, tuple(_value(path, number, row, name) for name in chosen)
            except InputError as error:
                yield number, error


def _json_object(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise InputError(f"{location_of(path, number)}: not valid JSON ({error})") from None
    except RecursionError:
        raise InputError(f"{location_of(path, number)}: JSON nested too deeply") from None
    if not isinstance(row, dict):
        raise InputError(f"{location_of(path, number)}: expected a JSON object, found {type(row).__name__}")
    return row


def _value(path: Path, number: int, row: dict[str, Any], name: str) -> Any:
    if name not in row:
        raise InputError(f"{location_of(path, number)}: no column {name!r}; this row has: {', '.join(row)}")
    return row[name]


def _csv_rows(path: Path, choose: ChooseColumns) -> Iterator[FoundRow]:
    csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_CSV_FIELD))
    # Line ends stay on the lines: inside quotes they belong to the text. A row may have several lines, so bytes that
    # are not UTF-8 are looked for in whole rows.
    lines = (cast(str, line) for _, line in read_lines(path, keep_ends=True, errors="surrogateescape"))
    reader = csv.reader(lines, strict=True)

    def fields() -> Iterator[tuple[int, list[str] | InputError]]:
        while True:
            start = reader.line_num + 1
            try:
                row = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield start, InputError(f"{location_of(path, start)}: not valid CSV ({error})")
                continue
            odd = next((field for field in row if not is_encodable(field)), None)
            yield start, row if odd is None else _undecodable(path, start, odd.encode(errors="surrogateescape"))

    yield from _fields_to_rows(path, fields(), choose)


def tsv_rows(path: Path, choose: ChooseColumns, header: Sequence[str] | None = None) -> Iterator[FoundRow]:
    """Read a `.tsv` file. header: its columns, if it has no header line."""
    # Quotes are ordinary characters in TSV (GLUE's files have unbalanced ones), so a split is the whole grammar.
    fields: Iterator[tuple[int, list[str] | InputError]] = (
        (number, line if isinstance(line, InputError) else line.split("\t"))
        for number, line in read_lines(path)
        if line
    )
    yield from _fields_to_rows(path, fields if header is None else chain([(0, list(header))], fields), choose)


def _fields_to_rows(
    path: Path, fields: Iterator[tuple[int, list[str] | InputError]], choose: ChooseColumns
) -> Iterator[FoundRow]:
    header: list[str] | None = None
    positions: list[int] = []
    for number, row in fields:
        if not row:
            continue
        if isinstance(row, InputError):
            if header is None:
                raise row  # without its header a file means nothing
            yield number, row
        elif header is None:
            header = row
            positions = [header.index(name) for name in choose(header)]
        elif len(row) != len(header):
            yield (
                number,
                InputError(f"{location_of(path, number)}: {len(row)} fields where the header has {len(header)}"),
            )
        else:
            yield number, tuple(row[position] for position in positions)


def _parquet_rows(path: Path, choose: ChooseColumns) -> Iterator[FoundRow]:
    try:
        import pyarrow  # noqa: PLC0415
        import pyarrow.parquet  # noqa: PLC0415
    except ImportError:
        raise InputError(f'reading {path} needs pyarrow: pip install "hashee[parquet]"') from None
    try:
        # Without a buffer size, pyarrow fetches the whole column of a row group (often a million rows) at once.
        with pyarrow.parquet.ParquetFile(path, buffer_size=_PARQUET_BUFFER) as file:
            chosen = choose(file.schema_arrow.names)
            number = 0
            for batch in file.iter_batches(batch_size=_PARQUET_ROWS, columns=list(dict.fromkeys(chosen))):
                for values in zip(*(_column(batch.column(name)) for name in chosen), strict=True):
                    number += 1
                    odd = next((value for value in values if isinstance(value, UnicodeDecodeError)), None)
                    yield number, values if odd is None else _undecodable(path, number, odd.object)
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{path} is not a readable parquet file: {first_line(error)}") from None


def _column(array: Any) -> list[Any]:
    """Return the values of a column of parquet, with an error in place of each string that is not UTF-8."""

    def value_of(scalar: Any) -> Any:
        try:
            return scalar.as_py()
        except UnicodeDecodeError as error:
            return error

    try:
        return list(array.to_pylist())
    except UnicodeDecodeError:
        return [value_of(scalar) for scalar in array]


READERS: dict[str, Callable[[Path, ChooseColumns], Iterator[FoundRow]]] = {
    ".jsonl": _jsonl_rows,
    ".csv": _csv_rows,
    ".tsv": tsv_rows,
    ".parquet": _parquet_rows,
}


# --- files and lines ---------------------------------------------------------------------------------------


def ending_of(path: Path) -> str:
    """Return the format's ending without `.gz`, or refuse a format that cannot be read."""
    compressed = path.suffix.lower() == ".gz"
    ending = Path(path.stem).suffix.lower() if compressed else path.suffix.lower()
    if ending not in ENDINGS or (compressed and ending == ".parquet"):
        raise InputError(f"cannot read {path}: the name must end in {', '.join(ENDINGS)} (all but .parquet also .gz)")
    return ending


def read_lines(path: Path, keep_ends: bool = False, errors: str = "strict") -> Iterator[tuple[int, str | InputError]]:
    """Stream the numbered lines of a UTF-8 file, plain or gzip; only \\n and \\r\\n end a line.

    errors: "strict" gives an error in place of a line that is not UTF-8; others are Python's.
    """
    number = 0
    try:
        with _open(path) as file:
            for number, raw in enumerate(file, start=1):
                try:
                    line = raw.decode("utf-8-sig" if number == 1 else "utf-8", errors)
                except UnicodeDecodeError as error:
                    yield number, _undecodable(path, number, error.object)
                    continue
                yield number, line if keep_ends else line.removesuffix("\n").removesuffix("\r")
    except EOFError:
        raise InputError(f"{path} is a truncated gzip file (cut off after line {number}); copy it again") from None
    except (OSError, zlib.error) as error:
        raise InputError(f"cannot read {path} after line {number}: {first_line(error)}") from None


def _undecodable(path: Path, number: int, raw: bytes) -> InputError:
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        reason = error.reason
    else:
        reason = "damaged"
    return InputError(f"{location_of(path, number)}: not UTF-8 ({reason}); convert the file to UTF-8")


def _open(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path, "rb")) if path.suffix.lower() == ".gz" else path.open("rb")


def location_of(path: Path, number: int) -> str:
    """Return where a row is, for messages."""
    return f"{path}, {'row' if path.suffix.lower() == '.parquet' else 'line'} {number}"


def is_encodable(text: str) -> bool:
    """Return whether a string is text: halves of surrogate pairs, which JSON can spell, are no characters."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
