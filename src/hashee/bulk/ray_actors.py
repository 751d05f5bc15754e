"""What runs on the nodes of a Ray cluster: reading shards into parts, and actors that score them.

Parts travel as one row of one column of JSON each, so that no re-blocking of Ray Data can cut or join them.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hashee.bulk.reading import Part, ShardEnd
from hashee.bulk.scoring import ScoringModel
from hashee.bulk.work import Work
from hashee.errors import HasheeError, InputError

COLUMN = "json"
END, ERROR, ROWS = "end", "error", "rows"
"""Entries of what an actor reports: a shard's end, why a part failed, or how many rows were written."""


def read_shard(batch: Any, work: Work) -> Iterator[dict[str, list[str]]]:
    """Read one shard into parts. batch: a table with one row, the number of the shard."""
    (number,) = batch.column("shard").to_pylist()
    try:
        for item in work.parts_of(work.shards[number]):
            message = json.dumps({END: asdict(item)}) if isinstance(item, ShardEnd) else item.to_json()
            yield {COLUMN: [message]}
    except HasheeError as error:
        yield {COLUMN: [json.dumps({ERROR: f"on {os.uname().nodename}, {error}"})]}


class PartScorer:
    """An actor: opens the model once, with its own number of threads, and scores one part after the other."""

    def __init__(self, work: Work, sign: str) -> None:
        """Keep what is needed. sign: a file in the output folder, by which a node tells that it shares the folder."""
        self.work = work
        self.sign = Path(sign)
        self.model: ScoringModel | None = None

    def __call__(self, batch: Any) -> dict[str, list[str]]:
        """Score and write a part. batch: a table with one row, as `read_shard` yields it. Returns a report."""
        (message,) = batch.column(COLUMN).to_pylist()
        values = json.loads(message)
        if END not in values and ERROR not in values:
            values = self._report(Part.from_json(message))
        return {COLUMN: [json.dumps(values)]}

    def _report(self, part: Part) -> dict[str, Any]:
        try:
            if not self.sign.exists():
                node = os.uname().nodename
                raise InputError(f"{node} of the Ray cluster does not see {self.sign.parent}; name a shared folder")
            # Opened here and not at first, so that what is wrong with a model is reported like any other error.
            self.model = self.model or self.work.open()
            self.work.write(self.model, part)
        except HasheeError as error:
            return {ERROR: str(error)}
        return {ROWS: len(part)}
