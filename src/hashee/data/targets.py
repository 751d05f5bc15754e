"""From the answers in the data to targets: ids of classes, scores, zeros and ones, ids of tags."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hashee.data.kinds import is_multi_hot
from hashee.data.reading import Rows, is_missing
from hashee.data.registry import Layout
from hashee.data.task import Kind, Target, Task
from hashee.errors import InputError

# How benchmarks write that an answer is kept back, or that the annotators found none.
_NO_ANSWER = (-1, "-")


def answered(rows: Rows, *, benchmark: bool, may_be_hidden: bool) -> tuple[Rows, str | None]:
    """Return the rows that have an answer, and a note if a benchmark's others were left out.

    may_be_hidden: whether a split without a single answer is one whose answers are kept back.
    """
    if rows.labels is None:
        return rows, None
    numbered = benchmark or rows.class_names() is not None
    missing, marked = [], []
    for index, answer in enumerate(rows.labels):
        if any(map(is_missing, answer)) if rows.one_column_each else is_missing(answer):
            missing.append(index)
        elif numbered and answer in _NO_ANSWER:
            marked.append(index)
    if may_be_hidden and len(missing) + len(marked) == len(rows.labels):
        return replace(rows, labels=None), None
    if not benchmark:
        missing = sorted(missing + marked)
    if missing:
        raise InputError(
            f"{rows.label_column} has no answer (null, empty, NaN or -1) in {rows.listed(missing)}; "
            f"fill such rows in or take them out"
        )
    if not marked:
        return rows, None
    if len(marked) == len(rows.labels):
        raise InputError(f"{rows.label_column} has no answer in any row; only test may be without")
    note = f"{len(marked):,} rows of {rows.source.name} have no agreed answer and are left out"
    return rows.without(set(marked)), note


def label_names(rows: Rows, kind: Kind) -> tuple[str, ...]:
    """Return the names of the classes, labels or tags that train has, in their order: the data's, or sorted."""
    labels = rows.labels
    assert labels is not None
    if kind is Kind.SCORE:
        return ()
    if rows.one_column_each:
        return rows.columns.label
    declared = rows.class_names()
    if kind is Kind.CLASSES:
        return declared or _sorted_names(labels)
    _refuse_other_than_lists(rows)
    if kind is Kind.LABELS and is_multi_hot(rows):
        return declared or tuple(map(str, range(len(labels[0]))))
    return declared or _sorted_names(item for answer in labels for item in answer)


def targets_of(rows: Rows, task: Task, train: Rows, layout: Layout | None) -> list[Target] | None:
    """Turn the answers of a split into targets, refusing what the task does not know; None if there are none.

    train: the rows of train, which decide how answers are written. layout: of a benchmark, whose labels are given.
    """
    if rows.labels is None:
        return None
    if task.kind is Kind.SCORE:
        return [_as_score(answer, rows, index) for index, answer in enumerate(rows.labels)]
    ids = _Ids.of(rows, task, layout)
    if task.kind is Kind.CLASSES:
        if isinstance(rows.labels[0], list):
            raise InputError(f"{rows.place(0)}: the answer is a list; a class is one name or number")
        _refuse_unknown(rows, task, [[answer] for answer in rows.labels], ids)
        return [ids.known(answer) for answer in rows.labels]
    if rows.one_column_each:
        return _zeros_and_ones(rows, task)
    _refuse_other_than_lists(rows)
    if task.kind is Kind.LABELS:
        return _zeros_and_ones(rows, task) if is_multi_hot(train) else _multi_label(rows, task, ids)
    for index, (words, tags) in enumerate(zip(rows.texts, rows.labels, strict=True)):
        if len(words) != len(tags):
            raise InputError(f"{rows.place(index)}: {len(words)} words but {len(tags)} tags; give each word one tag")
    _refuse_unknown(rows, task, rows.labels, ids)
    return [tuple(map(ids.known, tags)) for tags in rows.labels]


def refuse_no_choice(rows: Rows, kind: Kind, targets: Sequence[Target]) -> None:
    """Refuse to learn from answers that are all the same."""
    values: set[Any] = set(targets)
    if kind is Kind.TAGS:
        values = {tag for target in targets if isinstance(target, tuple) for tag in target}
    if len(values) < 2:
        assert rows.labels is not None
        what = {Kind.SCORE: "score", Kind.TAGS: "tag", Kind.CLASSES: "class"}.get(kind, "set of labels")
        raise InputError(
            f"{rows.label_column} has only one {what} in all of {len(targets):,} rows ({rows.labels[0]!r}); "
            f"there is nothing to learn from it: check the column, and that the file is not sorted and cut off"
        )


@dataclass(frozen=True)
class _Ids:
    """Finds the id of an answer, which may be a name, or a number that stands for one."""

    by_name: dict[str, int]
    count: int
    numbers_are_ids: bool
    benchmark: bool
    """Whether the labels are a benchmark's, which files write in upper or lower case."""

    @classmethod
    def of(cls, rows: Rows, task: Task, layout: Layout | None) -> "_Ids":
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

    def find(self, answer: Any) -> int | None:
        if self.numbers_are_ids and isinstance(answer, int | float):
            return int(answer) if answer % 1 == 0 and 0 <= answer < self.count else None
        name = _name(answer)
        found = self.by_name.get(name.lower() if self.benchmark else name)
        if found is None and self.numbers_are_ids and name.isdecimal():
            return int(name) if int(name) < self.count else None
        return found

    def known(self, answer: Any) -> int:
        found = self.find(answer)
        assert found is not None
        return found


def _multi_label(rows: Rows, task: Task, ids: _Ids) -> list[Target]:
    assert rows.labels is not None
    _refuse_unknown(rows, task, rows.labels, ids)
    applying = [{ids.known(item) for item in answer} for answer in rows.labels]
    return [tuple(int(label in applies) for label in range(len(task.labels))) for applies in applying]


def _refuse_unknown(rows: Rows, task: Task, answers: Sequence[Sequence[Any]], ids: _Ids) -> None:
    unknown: dict[str, None] = {}
    where = []
    for index, items in enumerate(answers):
        strange = [_name(item) for item in items if ids.find(item) is None]
        unknown |= dict.fromkeys(strange)
        if strange:
            where.append(index)
    if not unknown:
        return
    strangers = ", ".join(map(repr, list(unknown)[:5])) + (" ..." if len(unknown) > 5 else "")
    known = ", ".join(task.labels[:10]) + (" ..." if len(task.labels) > 10 else "")
    whose = f"labels of {task.name}" if ids.benchmark else "among the labels of train"
    raise InputError(
        f"{rows.label_column} has {strangers} in {rows.listed(where)}, not {whose} ({known}); "
        f"correct them, take those rows out, or have them in train too"
    )


def _refuse_other_than_lists(rows: Rows) -> None:
    assert rows.labels is not None
    for index, answer in enumerate(rows.labels):
        if not isinstance(answer, list) or not all(
            isinstance(item, int | float | str) and not is_missing(item) for item in answer
        ):
            raise InputError(f"{rows.place(index)}: the answer is {answer!r}; it must be a list of names or numbers")


def _as_score(answer: Any, rows: Rows, index: int) -> float:
    if isinstance(answer, int | float) and math.isfinite(answer):
        return float(answer)
    raise InputError(f"{rows.place(index)}: the score is {answer!r}; it must be a finite number")


def _zeros_and_ones(rows: Rows, task: Task) -> list[Target]:
    assert rows.labels is not None
    for index, answer in enumerate(rows.labels):
        if len(answer) != len(task.labels):
            raise InputError(f"{rows.place(index)}: {len(answer)} zeros and ones for {len(task.labels)} labels")
        for name, cell in zip(task.labels, answer, strict=True):
            if cell not in (0, 1):
                raise InputError(f"{rows.place(index)}: {name!r} is {cell!r}; it must be 0 or 1")
    return [tuple(map(int, answer)) for answer in rows.labels]


def _sorted_names(answers: Iterable[Any]) -> tuple[str, ...]:
    names = {_name(answer) for answer in answers}
    if all(name.removeprefix("-").isdecimal() for name in names):
        return tuple(sorted(names, key=int))
    return tuple(sorted(names))


def _name(answer: Any) -> str:
    if isinstance(answer, float) and answer % 1 == 0:
        return str(int(answer))
    return str(answer)
