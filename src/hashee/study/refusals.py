"""To which tasks a method applies: those whose models write text, or those with a head on an encoder."""

from hashee.data import Task
from hashee.data.task_types import type_of


def refuse_writing(method: str, task: Task) -> str | None:
    """Say that a method makes encoders with a head cheaper, where models of the task write text; None elsewhere."""
    if type_of(task).writes_text:
        return f"{method} makes encoders with a head cheaper, but models of {task.name} write text"
    return None


def refuse_without_writing(method: str, task: Task) -> str | None:
    """Say that a method is for models that write text, where those of the task do not; None elsewhere."""
    if type_of(task).writes_text:
        return None
    return f"{method} is for models that write text; {task.name} is {task.kind}"
