"""From labels in the data, which are names or numbers, to ids; rows without a label are found, unknown ones refused."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hashee.data.reading import Rows, is_missing
from hashee.data.registry import Layout
from hashee.data.task import Task
from hashee.errors import InputError

# How benchmarks write that a label is kept back, or that the annotators did not agree on one.
_NO_LABEL = (-1, "-")


def rows_with_label(rows: Rows, *, benchmark: bool, may_be_hidden: bool) -> tuple[Rows, str | None]:
    """Return the rows that have a label, and a note if a benchmark's others were left out.

    may_be_hidden: whether a split without a single label is one whose labels are kept back.
    """
    if rows.labels is None:
        return rows, None
    numbered = benchmark or rows.class_names() is not None
    missing, marked = [], []
    for index, label in enumerate(rows.labels):
        if any(map(is_missing, label)) if rows.one_column_each else is_missing(label):
            missing.append(index)
        elif numbered and label in _NO_LABEL:
            marked.append(index)
    if may_be_hidden and len(missing) + len(marked) == len(rows.labels):
        return replace(rows, labels=None), None
    if not benchmark:
        missing = sorted(missing + marked)
    if missing:
        raise InputError(
            f"{rows.label_column} has no label (null, empty, NaN or -1) in {rows.listed(missing)}; "
            f"fill such rows in or take them out"
        )
    if not marked:
        return rows, None
    if len(marked) == len(rows.labels):
        raise InputError(f"{rows.label_column} has no label in any row; only test may be without")
    note = f"{len(marked):,} rows of {rows.source.name} have no agreed label and are left out"
    return rows.without(set(marked)), note


@dataclass(frozen=True)
class LabelIds:
    """Finds the id of a label, which may be a name, or a number that stands for one."""

    by_name: dict[str, int]
    count: int
    numbers_are_ids: bool
    benchmark: bool
    """Whether the labels are a benchmark's, which files write in upper or lower case."""

    @classmethod
    def of(cls, rows: Rows, task: Task, layout: Layout | None) -> "LabelIds":
        """Read what the labels of a split stand for. layout: of a benchmark, whose labels are given."""
        by_name = {name: number for number, name in enumerate(task.labels)}
        declared = rows.class_names()
        if layout is None:
            return cls(by_name, len(by_name), numbers_are_ids=declared is not None, benchmark=False)
        by_name = {name.lower(): number for name, number in by_name.items()}
        by_name |= {other.lower(): by_name[name.lower()] for other, name in layout.synonyms.items()}
        # A dataset may number the same classes in another order than the benchmark.
        if declared is not None and all(name.lower() in by_name for name in declared):
            by_name |= {str(number): by_name[name.lower()] for number, name in enumerate(declared)}
            return cls(by_name, len(task.labels), numbers_are_ids=False, benchmark=True)
        return cls(by_name, len(task.labels), numbers_are_ids=True, benchmark=True)

    def find(self, label: Any) -> int | None:
        """Return the id of a label, None if the task does not have it."""
        if self.numbers_are_ids and isinstance(label, int | float):
            return int(label) if label % 1 == 0 and 0 <= label < self.count else None
        name = _name(label)
        found = self.by_name.get(name.lower() if self.benchmark else name)
        if found is None and self.numbers_are_ids and name.isdecimal():
            return int(name) if int(name) < self.count else None
        return found

    def known(self, label: Any) -> int:
        """Return the id of a label that the task has."""
        found = self.find(label)
        assert found is not None
        return found


def refuse_unknown(rows: Rows, task: Task, labels: Sequence[Sequence[Any]], ids: LabelIds) -> None:
    """Refuse labels that the task does not have. labels: those of each row."""
    unknown: dict[str, None] = {}
    indices = []
    for index, of_row in enumerate(labels):
        unknown_here = [_name(label) for label in of_row if ids.find(label) is None]
        unknown |= dict.fromkeys(unknown_here)
        if unknown_here:
            indices.append(index)
    if not unknown:
        return
    shown = ", ".join(map(repr, list(unknown)[:5])) + (" ..." if len(unknown) > 5 else "")
    known = ", ".join(task.labels[:10]) + (" ..." if len(task.labels) > 10 else "")
    whose = f"labels of {task.name}" if ids.benchmark else "among the labels of train"
    raise InputError(
        f"{rows.label_column} has {shown} in {rows.listed(indices)}, not {whose} ({known}); "
        f"correct them, take those rows out, or have them in train too"
    )


def refuse_other_than_lists(rows: Rows) -> None:
    """Refuse labels that are not lists of names or numbers."""
    assert rows.labels is not None
    for index, label in enumerate(rows.labels):
        if not isinstance(label, list) or not all(
            isinstance(item, int | float | str) and not is_missing(item) for item in label
        ):
            raise InputError(f"{rows.location(index)}: the label is {label!r}; it must be a list of names or numbers")


def sorted_names(labels: Iterable[Any]) -> tuple[str, ...]:
    """Return the different labels by name, sorted as numbers if all of them are."""
    names = {_name(label) for label in labels}
    if all(name.removeprefix("-").isdecimal() for name in names):
        return tuple(sorted(names, key=int))
    return tuple(sorted(names))


def _name(label: Any) -> str:
    if isinstance(label, float) and label % 1 == 0:
        return str(int(label))
    return str(label)
