"""Judging models: `hashee.evaluate` for one, `hashee.tradeoff` for several at different costs, and their reports."""

from hashee.evaluating.compare import tradeoff
from hashee.evaluating.evaluation import Evaluation
from hashee.evaluating.figure import draw_tradeoff
from hashee.evaluating.measure import evaluate
from hashee.evaluating.points import Point, read_points, write_points
from hashee.evaluating.settings import EvaluateSettings

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
