"""Reading the rows of a split: texts, checked, and labels as they are written in the data."""

import math
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from hashee.data.columns import Chosen, Columns, choose_columns, no_label_column
from hashee.data.row_files import is_encodable
from hashee.data.sources import Source
from hashee.data.task import Task, Words
from hashee.data.texts import HALF_PAIR, Text, parse_number
from hashee.errors import InputError

_SHOWN = 5


@dataclass(frozen=True)
class Rows:
    """One split as it was read, in order."""

    source: Source
    columns: Chosen
    numbers: Sequence[int]
    """Number of each row in the source."""
    texts: Sequence[Text | Words]
    labels: Sequence[Any] | None
    """The cell of each row, or its cells in the label columns; None if the split has no labels."""

    @property
    def pair(self) -> bool:
        """Whether an example is two texts."""
        return len(self.columns.text) == 2

    @property
    def words(self) -> bool:
        """Whether the texts are lists of words."""
        return not self.pair and not isinstance(self.texts[0], str)

    @property
    def one_column_each(self) -> bool:
        """Whether every label has a column of its own."""
        return len(self.columns.label) > 1

    @property
    def label_column(self) -> str:
        """What messages call the column or columns of the labels."""
        return f"column {', '.join(map(repr, self.columns.label))} of {self.source.name}"

    def class_names(self) -> tuple[str, ...] | None:
        """Return what the numbers in the label column stand for, if the data say so."""
        return self.source.class_names(self.columns.label[0]) if len(self.columns.label) == 1 else None

    def location(self, index: int) -> str:
        """Return where a row is, for messages."""
        return self.source.location(self.numbers[index])

    def listed(self, indices: Sequence[int]) -> str:
        """Return how many rows these are and which, for messages."""
        return listed(self.source, [self.numbers[index] for index in indices])

    def without(self, dropped: Set[int]) -> "Rows":
        """Return the rows whose indices are not among those dropped."""
        kept = [index for index in range(len(self.texts)) if index not in dropped]
        return replace(
            self,
            numbers=[self.numbers[index] for index in kept],
            texts=[self.texts[index] for index in kept],
            labels=None if self.labels is None else [self.labels[index] for index in kept],
        )


def read_split(source: Source, wanted: Columns, task: Task | None, *, labelled: bool) -> Rows:
    """Read a split; `labelled` says that it must have labels."""
    available = source.columns()
    chosen = choose_columns(source.name, available, wanted, task, labelled)
    # A title such as 1984 is a text, whatever it looks like.
    numbers_are_text = source.numbers_are_text and not chosen.labels_are_texts
    numbers: list[int] = []
    texts: list[Text | Words] = []
    labels: list[Any] = []
    for number, cells in source.rows((*chosen.text, *chosen.label)):
        numbers.append(number)
        texts.append(_as_text(cells[: len(chosen.text)], source, number))
        of_row = tuple(_as_label(cell, numbers_are_text) for cell in cells[len(chosen.text) :])
        labels.append(of_row[0] if len(of_row) == 1 else of_row)
    rows = Rows(source, chosen, numbers, texts, labels if chosen.label else None)
    _refuse_unusable_texts(rows)
    _refuse_odd_labels(rows)
    if chosen.guessed_labels and not all(cell in (0, 1) for cells in labels for cell in cells):
        raise no_label_column(source.name, available)
    return rows


def is_missing(cell: Any) -> bool:
    """Tell whether a cell holds no label at all."""
    return cell is None or cell == "" or (isinstance(cell, float) and math.isnan(cell))


def listed(source: Source, numbers: Sequence[int]) -> str:
    """Return how many rows these are and the first few of them, for messages."""
    unit = source.unit if len(numbers) == 1 else f"{source.unit}s"
    rest = len(numbers) - _SHOWN
    return f"{unit} {', '.join(map(str, numbers[:_SHOWN]))}" + (f" and {rest:,} more" if rest > 0 else "")


def _as_text(cells: tuple[Any, ...], source: Source, number: int) -> Text | Words:
    parts: list[Any] = []
    for cell in cells:
        whole = cell if isinstance(cell, str) else " ".join(cell) if _is_words(cell) else None
        if whole is None:
            found = "missing" if cell is None else f"of type {type(cell).__name__}"
            raise InputError(f"{source.location(number)}: the text is {found}; it must be a string or a list of words")
        if not is_encodable(whole):
            raise InputError(f"{source.location(number)}: the text holds {HALF_PAIR}")
        parts.append(tuple(cell) if len(cells) == 1 and not isinstance(cell, str) else whole)
    text: Text | Words = parts[0] if len(parts) == 1 else (parts[0], parts[1])
    return text


def _is_words(cell: Any) -> bool:
    return isinstance(cell, list | tuple) and all(isinstance(word, str) for word in cell)


def _as_label(cell: Any, numbers_are_text: bool) -> Any:
    if isinstance(cell, str):
        cell = cell.strip()
        return parse_number(cell) if numbers_are_text else cell
    return int(cell) if isinstance(cell, bool) else cell


def _refuse_unusable_texts(rows: Rows) -> None:
    """Refuse a split without rows, blank texts, and strings mixed with lists of words."""
    if not rows.texts:
        raise InputError(f"{rows.source.name} has no rows; it needs one for each example")
    blank = [index for index, text in enumerate(rows.texts) if _is_blank(text, rows.pair)]
    if blank:
        raise InputError(
            f"{rows.source.name} has a blank text in {rows.listed(blank)}; fill such rows in or take them out"
        )
    if not rows.pair:
        for index, text in enumerate(rows.texts):
            if isinstance(text, str) == rows.words:
                raise InputError(
                    f"{rows.location(index)}: the text is a {'string' if rows.words else 'list of words'}, "
                    f"unlike that of {rows.source.unit} {rows.numbers[0]}; make them all strings or all lists"
                )


def _refuse_odd_labels(rows: Rows) -> None:
    """Refuse labels that are neither numbers nor strings nor lists, and lists mixed with others."""
    for index, label in enumerate(rows.labels or ()):
        cells = label if rows.one_column_each else (label,)
        for cell in cells:
            if not isinstance(cell, int | float | str | list | None):
                raise InputError(
                    f"{rows.location(index)}: the label is of type {type(cell).__name__}; "
                    f"it must be a number, a string or a list of these"
                )
    lists = [isinstance(label, list) for label in rows.labels or () if label is not None]
    if any(lists) and not all(lists):
        raise InputError(f"{rows.label_column} has lists in some rows and other things in others; make them alike")


def _is_blank(text: Text | Words, pair: bool) -> bool:
    if isinstance(text, str):
        return not text.strip()
    return not (all if pair else any)(part.strip() for part in text)
