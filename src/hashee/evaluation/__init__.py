"""Judging models: `hashee.evaluate` for one, `hashee.tradeoff` for several at different costs, and their reports."""

from typing import TYPE_CHECKING

from hashee.evaluation.points import TradeoffPoint, read_points, write_points
from hashee.evaluation.settings import EvaluateSettings
from hashee.packages import lazy_names

if TYPE_CHECKING:
    from hashee.evaluation.compare import tradeoff
    from hashee.evaluation.evaluation import Evaluation
    from hashee.evaluation.figure import draw_tradeoff
    from hashee.evaluation.measure import evaluate

__all__ = [
    "EvaluateSettings",
    "Evaluation",
    "TradeoffPoint",
    "draw_tradeoff",
    "evaluate",
    "read_points",
    "tradeoff",
    "write_points",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Evaluation": "hashee.evaluation.evaluation",
        "draw_tradeoff": "hashee.evaluation.figure",
        "evaluate": "hashee.evaluation.measure",
        "tradeoff": "hashee.evaluation.compare",
    },
)
