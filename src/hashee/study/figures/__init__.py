"""Figures of the study, one file each."""

from collections.abc import Callable
from typing import Any

from hashee.study.figures.backbones import backbones
from hashee.study.figures.difficulty import difficulty
from hashee.study.figures.hash_functions import hash_functions
from hashee.study.figures.inference_time import inference_time
from hashee.study.figures.quality_cost import quality_cost
from hashee.study.figures.style import save
from hashee.study.options import ReportOptions
from hashee.study.results import RunResult

FIGURES: dict[str, Callable[[list[RunResult], ReportOptions], Any]] = {
    "quality-cost": quality_cost,
    "hash-functions": hash_functions,
    "backbones": backbones,
    "inference-time": inference_time,
    "difficulty": difficulty,
}
"""What makes each figure, as an object of matplotlib, of results."""

__all__ = ["FIGURES", "save"]
