"""Inferring the kind of a task from the labels in the data."""

from collections.abc import Sequence
from typing import Any

from hashee.data.reading import Rows
from hashee.data.task import Kind
from hashee.errors import InputError

# So many different whole numbers written with a decimal point are a scale rather than classes.
_MOST_FLOAT_CLASSES = 20
# Above this, and if most values occur once, the column does not look like classes.
_MANY_CLASSES = 20


def infer_kind(rows: Rows) -> Kind:
    """Return what is to be predicted; refuse labels that allow two kinds, naming the argument that decides."""
    labels = rows.labels
    assert labels is not None
    if rows.one_column_each:
        return Kind.LABELS
    if isinstance(labels[0], list | tuple):
        return Kind.TAGS if rows.words else Kind.LABELS
    numbers = [label for label in labels if isinstance(label, int | float)]
    if numbers and len(numbers) < len(labels):
        raise _mixture(rows, labels)
    if numbers and _are_scores(rows, numbers):
        return Kind.SCORE
    values = len(set(labels))
    if values > _MANY_CLASSES and values > len(labels) / 2:
        raise InputError(
            f"{rows.label_column} has {values:,} different values in {len(labels):,} "
            f"rows; if it holds scores pass --kind regression (Python: kind='regression'), if classes --kind "
            f"classification, or name another column with --label-column (Python: Columns(label=...))"
        )
    return Kind.CLASSES


def is_multi_hot(rows: Rows) -> bool:
    """Tell whether labels are lists of a 0 or 1 for every label, rather than of those labels that apply."""
    lists = rows.labels or ()
    numbers = {number for each in lists for number in each}
    if len({len(each) for each in lists}) > 1 or not numbers or not numbers <= {0, 1}:
        return False
    # A list of labels names none twice, but three or more zeros and ones must repeat.
    if any(len(set(each)) < len(each) for each in lists):
        return True
    raise InputError(
        f"{rows.label_column} could be 0 or 1 for each of two labels or the numbers "
        f"of those that apply; write the labels by name"
    )


def _are_scores(rows: Rows, numbers: Sequence[int | float]) -> bool:
    if rows.columns.label == ("score",) or any(isinstance(number, float) and number % 1 != 0 for number in numbers):
        return rows.class_names() is None
    floats = any(isinstance(number, float) for number in numbers)
    return floats and len(set(numbers)) > _MOST_FLOAT_CLASSES


def _mixture(rows: Rows, labels: Sequence[Any]) -> InputError:
    number = next(index for index, label in enumerate(labels) if isinstance(label, int | float))
    other = next(index for index, label in enumerate(labels) if not isinstance(label, int | float))
    return InputError(
        f"{rows.label_column} mixes numbers and other things: {labels[number]!r} in "
        f"{rows.source.unit} {rows.numbers[number]}, {labels[other]!r} in {rows.source.unit} {rows.numbers[other]}; "
        f"correct it, or pass --kind classification (Python: kind='classification') to take them all as names"
    )
