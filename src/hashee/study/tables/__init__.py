"""The paper's tables from our results, one file each."""

from collections.abc import Callable

from hashee.study.options import ReportOptions
from hashee.study.results import RunResult
from hashee.study.tables.buckets import buckets
from hashee.study.tables.difficulty import difficulty, hypothesis
from hashee.study.tables.elue import elue
from hashee.study.tables.flops import flops
from hashee.study.tables.hash_functions import hash_functions
from hashee.study.tables.max_speed import max_speed
from hashee.study.tables.quality_at_cost import quality_at_cost, quality_at_paper_cost
from hashee.study.tables.quality_at_time import quality_at_time
from hashee.study.tables.saved_macs import saved_macs
from hashee.study.tables.summarization import summarization
from hashee.study.tables.table import Cell, Table

TABLES: dict[str, Callable[[list[RunResult], ReportOptions], Table]] = {
    "elue": elue,
    "quality-at-cost": quality_at_cost,
    "quality-at-paper-cost": quality_at_paper_cost,
    "quality-at-time": quality_at_time,
    "hash-functions": hash_functions,
    "buckets": buckets,
    "max-speed": max_speed,
    "saved-macs": saved_macs,
    "flops": flops,
    "summarization": summarization,
    "difficulty": difficulty,
    "hypothesis": hypothesis,
}
"""What makes each table of results."""

__all__ = ["TABLES", "Cell", "Table"]
