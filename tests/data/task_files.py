"""Small files of examples for the tests of tasks."""

import csv
import gzip
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Record = dict[str, Any]


def write_rows(path: Path, rows: Sequence[Record]) -> Path:
    """Write records in the format that the file's name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    ending = path.name.removesuffix(".gz").rpartition(".")[2]
    if ending == "parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
        return path
    return write(path, {"jsonl": _jsonl, "csv": _csv, "tsv": _tsv, "txt": _tsv}[ending](rows))


def write(path: Path, content: str | bytes) -> Path:
    """Write a file as it stands, compressed if its name says so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def reviews(count: int, start: int = 0) -> list[Record]:
    """Return records with a text and one of two labels in turn."""
    return [
        {"text": f"review {number}", "label": ("bad", "good")[number % 2]} for number in range(start, start + count)
    ]


def _jsonl(rows: Sequence[Record]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def _csv(rows: Sequence[Record]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(rows[0])
    writer.writerows(row.values() for row in rows)
    return file.getvalue()


def _tsv(rows: Sequence[Record]) -> str:
    lines = [list(rows[0]), *(row.values() for row in rows)]
    return "".join("\t".join(map(str, line)) + "\n" for line in lines)
