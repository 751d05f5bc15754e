"""The examples of a run: a task, or a stated part of it."""

from dataclasses import replace
from functools import cache

from hashee.data import Examples, TaskData, load_task
from hashee.data.fingerprint import fingerprint_of
from hashee.data.splits import first_of_shuffled

Limits = tuple[int | None, int | None, int | None]


def study_data(task: str | TaskData, limits: Limits = (None, None, None)) -> TaskData:
    """Load a task by name or path, or take it. limits: examples of train, dev and test, drawn with seed 0."""
    data = task if isinstance(task, TaskData) else _loaded(task)
    if not any(limits):
        return data
    train, dev = _part(data.train, limits[0]), _part(data.dev, limits[1])
    test = None if data.test is None else _part(data.test, limits[2])
    sizes = f"{len(train):,}, {len(dev):,} and {0 if test is None else len(test):,}"
    note = f"train, dev and test are {sizes} examples, drawn with seed 0"
    fingerprint = fingerprint_of(data.task, train, dev, test)
    return replace(data, train=train, dev=dev, test=test, fingerprint=fingerprint, notes=(*data.notes, note))


@cache
def _loaded(task: str) -> TaskData:
    return load_task(task)


def _part(examples: Examples, limit: int | None) -> Examples:
    return examples if limit is None or limit >= len(examples) else first_of_shuffled(examples, limit, seed=0)
