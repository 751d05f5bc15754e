"""Reading texts, pairs and labels from files, one row at a time."""

import csv
import gzip
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, cast

from hashee.errors import InputError, first_line

Text: TypeAlias = str | tuple[str, str]
Label: TypeAlias = int | float | str
PathLike: TypeAlias = str | os.PathLike[str]
# Given the columns there are, return the columns to read.
ChooseColumns: TypeAlias = Callable[[Sequence[str]], tuple[str, ...]]
# (line or row number from 1, the values of the chosen columns)
Row: TypeAlias = tuple[int, tuple[Any, ...]]

ENDINGS = (".txt", ".jsonl", ".csv", ".tsv", ".parquet")
# In the order in which they are tried.
TEXT_COLUMNS = (
    *(("text",), ("sentence1", "sentence2"), ("premise", "hypothesis"), ("sentence",)),
    *(("query", "document"), ("query", "passage"), ("document",)),
)
LABEL_COLUMNS = ("label", "score")
HALF_PAIR = "half of a surrogate pair, which is no character; correct the text, or leave it out"

# The csv module stops at 131,072 characters a field, which long documents exceed; a limit stays, because an
# unclosed quote would otherwise swallow the rest of the file into memory.
_LONGEST_CSV_FIELD = 1 << 26
_NUMBER = re.compile(r"[-+]?(\d{1,300}\.?\d{0,300}|\.\d{1,300})([eE][-+]?\d{1,3})?", re.ASCII)
_PARQUET_ROWS = 256
_PARQUET_BUFFER = 1 << 20


def read_texts(
    paths: PathLike | Iterable[PathLike], column: str | None = None, pair_column: str | None = None
) -> Iterator[Text]:
    """Stream the texts of one or more files: `.txt`, `.jsonl`, `.csv`, `.tsv` (each also `.gz`) or `.parquet`.

    A `.txt` file holds one text a line. The other formats have columns: `column` (and `pair_column` for pairs)
    name them; otherwise the first of text, sentence1 + sentence2, premise + hypothesis, sentence, query + document,
    query + passage, document is taken. A list of words in a column is joined by spaces. Files are looked up at once
    and read lazily.
    """
    files = _checked_paths(paths)
    return chain.from_iterable((text for _, text in _texts_of(path, column, pair_column)) for path in files)


def read_numbered(
    path: PathLike, column: str | None = None, pair_column: str | None = None
) -> Iterator[tuple[int, Text]]:
    """Stream the texts of one file as `read_texts` does, each with the number of its line (parquet: row) from 1 on."""
    return _texts_of(_checked_path(path), column, pair_column)


def text_columns(rows: Sequence[Any], first: int = 0) -> tuple[list[str], list[str] | None]:
    """Return texts, or the firsts and seconds of pairs, as a tokenizer takes them. first: the number of the first."""
    for number, row in enumerate(rows, start=first):
        pair = isinstance(row, tuple | list) and len(row) == 2
        for part in row if pair else (row,):
            if not isinstance(part, str):
                raise InputError(
                    f"texts must be strings or pairs of strings; text {number} {'holds' if pair else 'is'} "
                    f"{type(part).__name__}"
                )
            if not is_encodable(part):
                raise InputError(f"text {number} holds {HALF_PAIR}")
    if all(isinstance(row, str) for row in rows):
        return list(rows), None
    if any(isinstance(row, str) for row in rows):
        odd = next(number for number, row in enumerate(rows) if isinstance(row, str) != isinstance(rows[0], str))
        odd_form, form = ("a pair", "one text") if isinstance(rows[0], str) else ("one text", "a pair")
        raise InputError(
            f"texts must be all single or all (text, text) pairs; text {first + odd} is {odd_form} where text {first} "
            f"is {form}"
        )
    return [row[0] for row in rows], [row[1] for row in rows]


def is_encodable(text: str) -> bool:
    """Return whether a string is text: halves of surrogate pairs, which JSON can spell, are no characters."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_labelled(
    paths: PathLike | Iterable[PathLike],
    label_column: str | None = None,
    column: str | None = None,
    pair_column: str | None = None,
) -> Iterator[tuple[Text, Label]]:
    """Stream (text, label) from files with columns; the label column is `label` or `score` unless named.

    Labels are int, float or str; in `.csv` and `.tsv` files, fields that look like numbers become numbers.
    """
    files = _checked_paths(paths)
    return chain.from_iterable(_labelled_of(path, label_column, column, pair_column) for path in files)


def read_rows(
    path: PathLike, choose: ChooseColumns, *, ending: str | None = None, header: Sequence[str] | None = None
) -> Iterator[Row]:
    """Stream the chosen columns of one file with columns, each row with its line (parquet: row) number.

    ending: the format, where the file's name does not tell. header: the columns of a `.tsv` without a header line.
    """
    path = _checked_path(path)
    ending = ending or ending_of(path)
    if ending == ".txt":
        raise InputError(f"{path} is plain text without columns; use one of {', '.join(ENDINGS[1:])}")
    if ending == ".tsv":
        return _tsv_rows(path, choose, header)
    reader = {".jsonl": _jsonl_rows, ".csv": _csv_rows, ".parquet": _parquet_rows}[ending]
    return reader(path, choose)


def _texts_of(path: Path, column: str | None, pair_column: str | None) -> Iterator[tuple[int, Text]]:
    if ending_of(path) == ".txt":
        if column is not None or pair_column is not None:
            raise InputError(f"{path} is plain text without columns; leave out column={column or pair_column!r}")
        yield from ((number, line) for number, line in _lines(path) if line.strip())
        return
    for number, values in read_rows(path, lambda columns: _text_columns(path, columns, column, pair_column)):
        yield number, _as_text(values, path, number)


def _labelled_of(
    path: Path, label_column: str | None, column: str | None, pair_column: str | None
) -> Iterator[tuple[Text, Label]]:
    def choose(columns: Sequence[str]) -> tuple[str, ...]:
        return (*_text_columns(path, columns, column, pair_column), _label_column(path, columns, label_column))

    numbers_are_text = ending_of(path) in (".csv", ".tsv")
    for number, (*values, label) in read_rows(path, choose):
        if numbers_are_text:
            label = parse_number(label)  # noqa: PLW2901
        if isinstance(label, bool):
            label = int(label)  # noqa: PLW2901
        if not isinstance(label, int | float | str):
            raise InputError(
                f"{location_of(path, number)}: the label is {_type_name(label)}; it must be a number or a string"
            )
        yield _as_text(tuple(values), path, number), label


# --- choosing columns and reading values -------------------------------------------------------------------


def _text_columns(path: Path, columns: Sequence[str], column: str | None, pair_column: str | None) -> tuple[str, ...]:
    if column is None and pair_column is not None:
        raise InputError(f"pair_column={pair_column!r} needs column= for the first text of each pair")
    if column is not None:
        wanted = (column,) if pair_column is None else (column, pair_column)
        for name in wanted:
            _require(path, columns, name)
        return wanted
    for guess in TEXT_COLUMNS:
        if all(name in columns for name in guess):
            return guess
    raise InputError(f"{path} has no column that looks like text; name one of its columns: {', '.join(columns)}")


def _label_column(path: Path, columns: Sequence[str], label_column: str | None) -> str:
    if label_column is not None:
        return _require(path, columns, label_column)
    for guess in LABEL_COLUMNS:
        if guess in columns:
            return guess
    raise InputError(f"{path} has no column 'label' or 'score'; name the label column, one of: {', '.join(columns)}")


def _require(path: Path, columns: Sequence[str], name: str) -> str:
    if name not in columns:
        raise InputError(f"{path} has no column {name!r}; its columns are: {', '.join(columns)}")
    return name


def _as_text(values: tuple[Any, ...], path: Path, number: int) -> Text:
    parts = tuple(_as_string(value, path, number) for value in values)
    return parts[0] if len(parts) == 1 else (parts[0], parts[1])


def _as_string(value: Any, path: Path, number: int) -> str:
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        value = " ".join(value)
    if not isinstance(value, str):
        found = _type_name(value)
        raise InputError(f"{location_of(path, number)}: the text is {found}; it must be a string or a list of words")
    if not is_encodable(value):
        raise InputError(f"{location_of(path, number)}: the text holds {HALF_PAIR}")
    return value


def parse_number(field: str) -> Label:
    """Return the number that a field of a `.csv` or `.tsv` file spells, or the field itself."""
    if not _NUMBER.fullmatch(field):
        return field
    return int(field) if field.lstrip("+-").isdigit() else float(field)


def _type_name(value: Any) -> str:
    return "missing" if value is None else f"of type {type(value).__name__}"


# --- one reader per format ---------------------------------------------------------------------------------


def _jsonl_rows(path: Path, choose: ChooseColumns) -> Iterator[Row]:
    chosen: tuple[str, ...] | None = None
    for number, line in _lines(path):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise InputError(f"{location_of(path, number)}: not valid JSON ({error})") from None
        except RecursionError:
            raise InputError(f"{location_of(path, number)}: JSON nested too deeply") from None
        if not isinstance(row, dict):
            raise InputError(f"{location_of(path, number)}: expected a JSON object, found {type(row).__name__}")
        if chosen is None:
            chosen = choose(tuple(row))
        for name in chosen:
            if name not in row:
                raise InputError(f"{location_of(path, number)}: no column {name!r}; this row has: {', '.join(row)}")
        yield number, tuple(row[name] for name in chosen)


def _csv_rows(path: Path, choose: ChooseColumns) -> Iterator[Row]:
    csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_CSV_FIELD))
    # Line ends stay on the lines: inside quotes they belong to the text.
    reader = csv.reader((line for _, line in _lines(path, keep_ends=True)), strict=True)

    def fields() -> Iterator[tuple[int, list[str]]]:
        while True:
            start = reader.line_num + 1
            try:
                row = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                raise InputError(f"{location_of(path, start)}: not valid CSV ({error})") from None
            yield start, row

    yield from _fields_to_rows(path, fields(), choose)


def _tsv_rows(path: Path, choose: ChooseColumns, header: Sequence[str] | None = None) -> Iterator[Row]:
    # Quotes are ordinary characters in TSV (GLUE's files have unbalanced ones), so a split is the whole grammar.
    fields = ((number, line.split("\t")) for number, line in _lines(path) if line)
    yield from _fields_to_rows(path, fields if header is None else chain([(0, list(header))], fields), choose)


def _fields_to_rows(path: Path, fields: Iterator[tuple[int, list[str]]], choose: ChooseColumns) -> Iterator[Row]:
    header: list[str] | None = None
    positions: list[int] = []
    for number, row in fields:
        if not row:
            continue
        if header is None:
            header = row
            positions = [header.index(name) for name in choose(header)]
        elif len(row) != len(header):
            raise InputError(f"{location_of(path, number)}: {len(row)} fields where the header has {len(header)}")
        else:
            yield number, tuple(row[position] for position in positions)


def _parquet_rows(path: Path, choose: ChooseColumns) -> Iterator[Row]:
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
                for values in zip(*(batch.column(name).to_pylist() for name in chosen), strict=True):
                    number += 1
                    yield number, values
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{path} is not a readable parquet file: {first_line(error)}") from None


# --- files and lines ---------------------------------------------------------------------------------------


def _checked_paths(paths: PathLike | Iterable[PathLike]) -> list[Path]:
    if isinstance(paths, str | os.PathLike):
        paths = (paths,)
    return [_checked_path(path) for path in paths]


def _checked_path(path: PathLike) -> Path:
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path} is a folder; name the files in it, e.g. {path / 'train.jsonl'}")
    if not path.exists():
        raise InputError(f"{path} does not exist")
    ending_of(path)
    return path


def ending_of(path: Path) -> str:
    """Return the format's ending without `.gz`, or refuse a format that cannot be read."""
    compressed = path.suffix.lower() == ".gz"
    ending = Path(path.stem).suffix.lower() if compressed else path.suffix.lower()
    if ending not in ENDINGS or (compressed and ending == ".parquet"):
        raise InputError(f"cannot read {path}: the name must end in {', '.join(ENDINGS)} (all but .parquet also .gz)")
    return ending


def _lines(path: Path, keep_ends: bool = False) -> Iterator[tuple[int, str]]:
    """Stream the numbered lines of a UTF-8 file, plain or gzip; only \\n and \\r\\n end a line."""
    number = 0
    try:
        with _open(path) as file:
            for number, raw in enumerate(file, start=1):
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                yield number, line if keep_ends else line.removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{location_of(path, number)}: not UTF-8 ({error.reason}); convert the file to UTF-8"
        ) from None
    except EOFError:
        raise InputError(f"{path} is a truncated gzip file (cut off after line {number}); copy it again") from None
    except (OSError, zlib.error) as error:
        raise InputError(f"cannot read {path} after line {number}: {first_line(error)}") from None


def _open(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path, "rb")) if path.suffix.lower() == ".gz" else path.open("rb")


def location_of(path: Path, number: int) -> str:
    """Return where a row is, for messages."""
    return f"{path}, {'row' if path.suffix.lower() == '.parquet' else 'line'} {number}"
