"""Types of tasks, one file each: a new one is a file with a `TaskType`, its `Kind`, and its name in the list below."""

from hashee.data.task import Kind, Task
from hashee.data.task_types.classification import Classification
from hashee.data.task_types.multi_label import MultiLabel
from hashee.data.task_types.regression import Regression
from hashee.data.task_types.summarization import Summarization
from hashee.data.task_types.tagging import Tagging
from hashee.data.task_types.task_type import Agreement, TaskType

__all__ = ["TASK_TYPES", "Agreement", "TaskType", "type_of"]

_TYPES: tuple[TaskType, ...] = (Classification(), Regression(), MultiLabel(), Tagging(), Summarization())

TASK_TYPES: dict[Kind, TaskType] = {task_type.kind: task_type for task_type in _TYPES}
"""Every type by the kind of its tasks."""


def type_of(task: Task) -> TaskType:
    """Return the type of a task."""
    return TASK_TYPES[task.kind]
