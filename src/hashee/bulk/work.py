"""What every process of a job does, wherever it runs: read a shard into parts, score a part, write it."""

from collections.abc import Iterator
from dataclasses import dataclass

from hashee.bulk.inputs import Shard, path_of
from hashee.bulk.parts import PartFolder
from hashee.bulk.reading import Part, ShardEnd, read_parts
from hashee.bulk.scoring import RowFailure, ScoringModel, open_scoring_model
from hashee.bulk.settings import BulkJob
from hashee.data.row_files import location_of
from hashee.errors import HasheeError


@dataclass(frozen=True)
class Work:
    """All that a process needs to score parts of a job, wherever it runs."""

    job: BulkJob
    shards: tuple[Shard, ...]
    folder: PartFolder

    def parts_of(self, shard: Shard) -> Iterator[Part | ShardEnd]:
        """Read the parts of a shard that are not there yet, then what it held."""
        rows = self.job.rows
        columns = (rows.column, rows.pair_column)
        return read_parts(shard, self.job.texts, rows.part_rows, columns, self.folder.is_done)

    def open(self) -> ScoringModel:
        """Open the model."""
        return open_scoring_model(self.job.model, self.job.threads)

    def write(self, model: ScoringModel, part: Part) -> None:
        """Score a part and write it."""
        try:
            fields = model.score([row.text for row in part.rows], self.job.rows.batch_tokens)
        except RowFailure as error:
            row = part.rows[error.number]
            path = path_of(row.file, self.job.texts)
            raise HasheeError(f"{location_of(path, row.number)}: {error}") from None
        self.folder.write(part, fields)
