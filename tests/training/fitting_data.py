"""A tiny backbone and small tasks of every kind that it can learn in seconds."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModel

from architectures import make_config
from hashee.data.fingerprint import fingerprint_of
from hashee.data.task import Examples, Kind, Recipe, Task, TaskData
from small_tokenizer import make_tokenizer

WORDS = ["the", "film", "is", "a", "story", "never", "cat", "plot", "zebra", "dog", "sat", "mat", "on"]
TAGS = ("O", "B-animal", "I-animal")
RECIPE = Recipe(learning_rate=1e-2, batch_size=8, epochs=3.0, warmup_ratio=0.1, weight_decay=0.01)
METRICS = {
    Kind.CLASSES: "accuracy",
    Kind.LABELS: "micro_f1",
    Kind.SCORE: "pearson_and_spearman",
    Kind.TAGS: "tag_accuracy",
}


def make_backbone(folder: Path, family: str = "bert", layers: int = 3, tokenizer: Any = None, **changes: Any) -> Path:
    """Write a tiny model of a family with new weights, and its tokenizer (default: the small WordPiece one)."""
    tokenizer = tokenizer or make_tokenizer()
    torch.manual_seed(0)
    config = make_config(
        family,
        vocab_size=len(tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        num_hidden_layers=layers,
        # So narrow a model hardly sees its input through weights as small as usual.
        **({"initializer_range": 0.1} | changes),
    )
    AutoModel.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def make_data(kind: Kind = Kind.CLASSES, pair: bool = False, train: int = 96, recipe: Recipe = RECIPE) -> TaskData:
    """Return a task whose targets are plain to see in the words of its texts."""
    labels = {Kind.CLASSES: ("bad", "good"), Kind.LABELS: ("animal", "good"), Kind.SCORE: (), Kind.TAGS: TAGS}[kind]
    task = Task(f"tiny-{kind}", kind, labels, METRICS[kind], pair=pair, recipe=recipe)
    splits = {
        name: make_examples(kind, pair, count, seed)
        for name, count, seed in (("train", train, 0), ("dev", 40, 1), ("test", 40, 2))
    }
    return TaskData(task, splits["train"], splits["dev"], splits["test"], fingerprint_of(task, *splits.values()))


def make_examples(kind: Kind, pair: bool, count: int, seed: int) -> Examples:
    draws = np.random.default_rng(seed)
    texts: list[Any] = []
    targets: list[Any] = []
    for _ in range(count):
        words = list(draws.choice(WORDS, size=draws.integers(2, 12)))
        good = int(draws.integers(2))
        if kind is not Kind.TAGS:
            words[draws.integers(len(words))] = ("bad", "good")[good]
        animal = int("cat" in words or "dog" in words)
        tags = tuple(1 if word in ("cat", "dog") else 0 for word in words)
        targets.append({Kind.CLASSES: good, Kind.LABELS: (animal, good), Kind.SCORE: 2.0 * good, Kind.TAGS: tags}[kind])
        text: Any = tuple(words) if kind is Kind.TAGS else " ".join(words)
        texts.append(("the film", text) if pair else text)
    return Examples(texts, targets)
