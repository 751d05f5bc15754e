"""Matching the outputs of a model with the labels of a task, by name."""

from collections.abc import Sequence
from typing import Any

from hashee.data.registry import layout_of
from hashee.data.task import Task
from hashee.data.task_types import type_of
from hashee.errors import InputError

_SHOWN = 6


def head_for(task: Task) -> str:
    """Return how the names of model classes end that have a head for a task."""
    return type_of(task).head


def check_head(name: str, config: Any, task: Task, source: str) -> None:
    """Raise unless a model of this class has the kind of head that the task needs."""
    if not name.endswith(head_for(task)):
        raise InputError(
            f"the model in {source} is a {name}; {task.name} is {task.kind} and needs a head of the kind "
            f"{head_for(task)}; name a model that was fitted to it"
        )
    check_problem(config, task, source)


def check_problem(config: Any, task: Task, source: str) -> None:
    """Raise if a model's config says that its head was made for another kind of task."""
    problem = getattr(config, "problem_type", None)
    expected = type_of(task).problem_type
    if None not in (problem, expected) and problem != expected:
        raise InputError(
            f"the head of the model in {source} is for {problem}, but {task.name} is {task.kind}; name a model that "
            f"was fitted to it"
        )


def output_order(config: Any, task: Task, names: Sequence[str] | None, source: str) -> list[int]:
    """Return which output of a model stands for each label of a task: (labels,).

    names: what the outputs stand for, where the config's names are not the task's.
    """
    if not type_of(task).named_outputs:
        if config.num_labels != 1:
            raise InputError(
                f"the model in {source} has {config.num_labels} outputs, but {task.name} asks for one score; name a "
                f"model with a head for regression"
            )
        return [0]
    own = [str(config.id2label[number]) for number in range(config.num_labels)]
    order = _matched(own, task)
    if order is None and names is not None:
        if len(names) != len(own):
            raise InputError(f"there are {len(names)} names for the {len(own)} outputs of the model in {source}")
        order = _matched(names, task)
    if order is None:
        raise InputError(
            f"the labels differ: the model in {source} has {_listed(names or own)}, {task.name} has "
            f"{_listed(task.labels)}; if they are the same by other names, name the model's outputs in order, such as "
            f"labels='{','.join(task.labels[:_SHOWN])}{',...' if len(task.labels) > _SHOWN else ''}' (--labels)"
        )
    return order


def _matched(names: Sequence[str], task: Task) -> list[int] | None:
    layout = layout_of(task)
    synonyms = {} if layout is None else {other.lower(): name.lower() for other, name in layout.synonyms.items()}
    # Where a task only numbers its classes, the names that transformers makes up say the same.
    synonyms |= {f"label_{name}": name for name in task.labels if name.isdecimal()}
    plain = [synonyms.get(name.lower(), name.lower()) for name in names]
    wanted = [label.lower() for label in task.labels]
    # Labels that differ in case only must be matched as they are written.
    if len(set(wanted)) < len(wanted):
        plain, wanted = list(names), list(task.labels)
    return [plain.index(label) for label in wanted] if sorted(plain) == sorted(wanted) else None


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:_SHOWN])}{' ...' if len(names) > _SHOWN else ''} ({len(names)})"
