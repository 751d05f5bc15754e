"""Judging models: `hashee.evaluate` for one, `hashee.tradeoff` for several at different costs, and their reports."""

from typing import TYPE_CHECKING

from hashee.evaluating.points import Point, read_points, write_points
from hashee.evaluating.settings import EvaluateSettings
from hashee.lazy import lazy_names

if TYPE_CHECKING:
    from hashee.evaluating.compare import tradeoff
    from hashee.evaluating.evaluation import Evaluation
    from hashee.evaluating.figure import draw_tradeoff
    from hashee.evaluating.measure import evaluate

__all__ = [
    "EvaluateSettings",
    "Evaluation",
    "Point",
    "draw_tradeoff",
    "evaluate",
    "read_points",
    "tradeoff",
    "write_points",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Evaluation": "hashee.evaluating.evaluation",
        "draw_tradeoff": "hashee.evaluating.figure",
        "evaluate": "hashee.evaluating.measure",
        "tradeoff": "hashee.evaluating.compare",
    },
)
