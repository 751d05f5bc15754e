"""Hash functions side by side, in 6 and 12 layers."""

from hashee.study.curves import notes_on_data
from hashee.study.options import ReportOptions
from hashee.study.paper import HASH_FUNCTIONS, HASHES
from hashee.study.results import RunResult
from hashee.study.tables.hashes import COLUMNS, NOTES, rows_of
from hashee.study.tables.table import Table, without_repeats


def hash_functions(results: list[RunResult], options: ReportOptions) -> Table:
    """Set every hash function beside the paper's, backbone by backbone."""
    chosen = [result for result in options.select(results) if result.method.startswith("hash-")]
    rows = [row for papers in HASH_FUNCTIONS for row in rows_of(chosen, papers, (papers.layers, papers.hash))]
    return Table(
        "Hash functions in 6 and 12 layers",
        ("layers", "hash", *COLUMNS),
        tuple(rows),
        without_repeats([*NOTES, f"paper: {HASHES.label}, ElasticBERT", *notes_on_data(chosen)]),
    )
