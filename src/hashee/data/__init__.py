"""Tasks: what is learnt, from which examples, and by which metric it is judged."""

from hashee.data.columns import Columns
from hashee.data.elue import ELASTICBERT, elue_score, mflops_per_text
from hashee.data.loading import load_task
from hashee.data.metrics import METRICS, Metric, score
from hashee.data.registry import TASKS, Layout, register_task
from hashee.data.submission import write_submission
from hashee.data.task import Examples, Kind, Recipe, Target, Task, TaskData, Words

__all__ = [
    "ELASTICBERT",
    "METRICS",
    "TASKS",
    "Columns",
    "Examples",
    "Kind",
    "Layout",
    "Metric",
    "Recipe",
    "Target",
    "Task",
    "TaskData",
    "Words",
    "elue_score",
    "load_task",
    "mflops_per_text",
    "register_task",
    "score",
    "write_submission",
]
