"""A task of tiny documents whose summaries a tiny model learns in seconds."""

from pathlib import Path
from typing import Any

import numpy as np

from hashee.data.fingerprint import fingerprint_of
from hashee.data.task import Examples, Kind, Recipe, Task, TaskData

RECIPE = Recipe(learning_rate=3e-3, batch_size=16, epochs=8.0, warmup_ratio=0.1, max_grad_norm=1.0)
SUMMARIES = {"good": "a great film", "bad": "a dull story"}
QUICK: dict[str, Any] = {"max_new_tokens": 8, "decoder_layers": 1, "num_beams": 2, "quiet": True}


def make_summaries(train: int = 256, recipe: Recipe = RECIPE) -> TaskData:
    """Return documents in which one word says which of two summaries is theirs."""
    task = Task("tiny-summaries", Kind.SUMMARIES, (), "rouge1", recipe=recipe)
    splits = [_examples(count, seed) for count, seed in ((train, 0), (24, 1), (20, 2))]
    return TaskData(task, *splits, fingerprint_of(task, *splits))


def _examples(count: int, seed: int) -> Examples:
    draws = np.random.default_rng(seed)
    texts, targets = [], []
    for _ in range(count):
        word = ("good", "bad")[draws.integers(2)]
        words = list(draws.choice(["the", "is", "cat", "dog", "mat", "on", "plot"], size=draws.integers(3, 9)))
        words[draws.integers(len(words))] = word
        texts.append(" ".join(words))
        targets.append(SUMMARIES[word])
    return Examples(texts, targets)


def write_documents(path: Path, count: int) -> Path:
    """Write documents of many lengths, of which every seventh is empty, as lines of JSON."""
    import json

    rows = ["" if number % 7 == 3 else "good cat " * (1 + number % 30) for number in range(count)]
    path.write_text("".join(json.dumps({"id": number, "document": row}) + "\n" for number, row in enumerate(rows)))
    return path
