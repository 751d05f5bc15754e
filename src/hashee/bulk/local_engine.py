"""A job on this machine: one process, which reads the next part while it scores one."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from hashee.bulk.progress import Report
from hashee.bulk.reading import Part, ShardEnd
from hashee.bulk.scoring import ScoringModel
from hashee.bulk.work import Work


def score_here(work: Work, report: Report) -> list[ShardEnd]:
    """Score what is missing of a job in this process, and return what each shard held."""
    model: ScoringModel | None = None
    ends = []
    with ThreadPoolExecutor(max_workers=1) as ahead:
        items = _all_items(work)
        coming = ahead.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = ahead.submit(next, items, None)
            if isinstance(item, ShardEnd):
                ends.append(item)
                continue
            # Opened late: a job of which nothing is missing needs no model.
            model = model or work.open()
            work.write(model, item)
            report(len(item))
    return ends


def _all_items(work: Work) -> Iterator[Part | ShardEnd]:
    for shard in work.shards:
        yield from work.parts_of(shard)
