"""Reading texts, pairs and labels from files, one row at a time."""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from hashee.data.row_files import (
    ENDINGS,
    READERS,
    ChooseColumns,
    Row,
    ending_of,
    is_encodable,
    location_of,
    read_lines,
    tsv_rows,
)
from hashee.errors import InputError

Text: TypeAlias = str | tuple[str, str]
Label: TypeAlias = int | float | str
PathLike: TypeAlias = str | os.PathLike[str]
_T = TypeVar("_T")

# In the order in which they are tried.
TEXT_COLUMNS = (
    *(("text",), ("sentence1", "sentence2"), ("premise", "hypothesis"), ("sentence",)),
    *(("query", "document"), ("query", "passage"), ("document",)),
)
LABEL_COLUMNS = ("label", "score")
HALF_PAIR = "half of a surrogate pair, which is no character; correct the text, or leave it out"

_NUMBER = re.compile(r"[-+]?(\d{1,300}\.?\d{0,300}|\.\d{1,300})([eE][-+]?\d{1,3})?", re.ASCII)


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


def read_leniently(
    path: PathLike, column: str | None = None, pair_column: str | None = None
) -> Iterator[tuple[int, Text | InputError]]:
    """Stream as `read_numbered` does, with an error in place of each row that cannot be read.

    A file of which nothing more can be read, or that lacks the columns as a whole, still raises.
    """
    return _found_texts(_checked_path(path), column, pair_column)


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
        return _strictly(tsv_rows(path, choose, header))
    return _strictly(READERS[ending](path, choose))


def _strictly(found: Iterator[tuple[int, _T | InputError]]) -> Iterator[tuple[int, _T]]:
    """Raise the first thing that is wrong with a row."""
    for number, row in found:
        if isinstance(row, InputError):
            raise row
        yield number, row


def _texts_of(path: Path, column: str | None, pair_column: str | None) -> Iterator[tuple[int, Text]]:
    return _strictly(_found_texts(path, column, pair_column))


def _found_texts(path: Path, column: str | None, pair_column: str | None) -> Iterator[tuple[int, Text | InputError]]:
    ending = ending_of(path)
    if ending == ".txt":
        if column is not None or pair_column is not None:
            raise InputError(f"{path} is plain text without columns; leave out column={column or pair_column!r}")
        yield from ((number, line) for number, line in read_lines(path) if isinstance(line, InputError) or line.strip())
        return
    for number, values in READERS[ending](path, lambda columns: _text_columns(path, columns, column, pair_column)):
        if isinstance(values, InputError):
            yield number, values
            continue
        try:
            text: Text | InputError = _as_text(values, path, number)
        except InputError as error:
            text = error
        yield number, text


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


# --- files ------------------------------------------------------------------------------------------------


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
