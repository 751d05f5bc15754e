"""Score a million short texts through `predict` and record the memory of the process on the way.

HASHEE_DATA=... python benchmarks/million_texts.py results/speed/million-texts.json
"""

import itertools
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import hashee
from hashee.data.texts import read_texts
from hashee.embedded import minilm_folder

TEXTS = 1_000_000
EVERY = 50_000
WORDS = 8


def main(output: Path) -> None:
    """Run and write one entry of (texts, seconds, resident MB) for every 50,000 texts."""
    data = Path(os.environ["HASHEE_DATA"])
    files = [data / "Banking77" / "train.jsonl.gz", data / "SST-2" / "train.jsonl.gz", data / "SNLI" / "dev.jsonl.gz"]
    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    dense = AutoModelForSequenceClassification.from_pretrained(minilm_folder(), num_labels=2)
    # Two layers are enough to see what memory does; a million texts should not take an hour.
    table = hashee.ExitTable.by_frequency(tokenizer, read_texts(files), num_layers=2, min_exit=0)
    model = hashee.convert(dense, table, tokenizer=tokenizer)

    process, start, entries = psutil.Process(), time.perf_counter(), []
    for number, _ in enumerate(model.predict(short_texts(files), progress=True), start=1):
        if number % EVERY == 0:
            resident = process.memory_info().rss / 2**20
            entries.append({"texts": number, "seconds": time.perf_counter() - start, "resident_mb": round(resident, 1)})
            output.write_text(json.dumps(entries, indent=1) + "\n")


def short_texts(files: list[Path]) -> Iterator[str]:
    """Yield the first words of the files' texts over and over, each time after another number."""
    texts = [text if isinstance(text, str) else text[0] for text in read_texts(files)]
    for number, text in enumerate(itertools.islice(itertools.cycle(texts), TEXTS)):
        yield " ".join([str(number), *text.split()[:WORDS]])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
