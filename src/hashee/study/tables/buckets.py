"""Numbers of layers and of buckets side by side, with the frequency hash."""

from hashee.study.curves import notes_on_data
from hashee.study.options import ReportOptions
from hashee.study.paper import BUCKETS, LAYERS_AND_BUCKETS
from hashee.study.results import RunResult
from hashee.study.tables.hashes import COLUMNS, NOTES, rows_of
from hashee.study.tables.table import Table, without_repeats


def buckets(results: list[RunResult], options: ReportOptions) -> Table:
    """Set each of the paper's eight pairs of layers and buckets beside ours, backbone by backbone."""
    chosen = [result for result in options.select(results) if result.method == "hash-frequency"]
    rows = [row for papers in LAYERS_AND_BUCKETS for row in rows_of(chosen, papers, (papers.layers, papers.buckets))]
    return Table(
        "Layers and buckets with the frequency hash",
        ("layers", "buckets", *COLUMNS),
        tuple(rows),
        without_repeats([*NOTES, f"paper: {BUCKETS.label}, ElasticBERT", *notes_on_data(chosen)]),
    )
