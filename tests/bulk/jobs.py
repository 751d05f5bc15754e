"""A small model, rows of which some cannot be read, and jobs over them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoModelForSequenceClassification

import hashee
from architectures import make_model
from hashee.bulk.settings import BulkJob, Format, ModelOptions, RowOptions
from small_tokenizer import WORDS, make_tokenizer

NAMES = {"id2label": {0: "bad", 1: "good"}, "label2id": {"bad": 0, "good": 1}}
BROKEN = {5: b"{bad", 17: b'{"id": 3}', 30: b'{"text": 5}', 41: b'{"text": "\xff\xfe"}', 42: b'{"text": "\\ud800"}'}
"""By index, lines that cannot be read: bad JSON, no column, a wrong type, no UTF-8, half a character."""


def make_texts(number: int) -> list[str]:
    """Return texts of 3 to 30 words."""
    random = np.random.default_rng(0)
    return [" ".join(random.choice(WORDS, size=random.integers(3, 30))) for _ in range(number)]


def make_classifier(folder: Path) -> Any:
    """Write a converted classifier with its tokenizer, and return it."""
    tokenizer = make_tokenizer()
    dense = make_model("bert", AutoModelForSequenceClassification, vocab_size=len(tokenizer), **NAMES)
    table = hashee.ExitTable.by_frequency(tokenizer, make_texts(50), num_layers=4, progress=False)
    model = hashee.convert(dense, table, tokenizer=tokenizer)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model


def write_rows(path: Path, texts: list[str]) -> Path:
    """Write lines of JSON, with broken ones in place of some."""
    lines = [json.dumps({"text": text}).encode() for text in texts]
    for index, line in BROKEN.items():
        lines[index] = line
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def make_job(model: Path, texts: Path, output: Path, **rows: Any) -> BulkJob:
    """Return a job in small parts with one thread."""
    options = RowOptions(**({"part_rows": 16} | rows))
    return BulkJob(ModelOptions(str(model)), texts, output, options, 1)


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder, hidden ones too, by its path."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def rows_of(folder: Path, ending: Format = Format.jsonl) -> list[dict[str, Any]]:
    """Return the rows of all parts in the order of their names."""
    paths = sorted(folder.glob(f"part-*.{ending}"))
    if ending is Format.jsonl:
        return [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    import pyarrow.parquet

    return [row for path in paths for row in pyarrow.parquet.read_table(path).to_pylist()]
