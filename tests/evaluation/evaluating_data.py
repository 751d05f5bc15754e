"""Tiny models with heads, converted and dense, and small tasks of every kind."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

import hashee
from architectures import make_model
from hashee.data.task import Examples, Kind, Task, TaskData
from small_tokenizer import WORDS, make_tokenizer

LABELS = {
    Kind.CLASSES: ("bad", "dull", "good"),
    Kind.LABELS: ("animal", "good"),
    Kind.SCORE: (),
    Kind.TAGS: ("O", "B-animal", "I-animal"),
}
METRICS = {
    Kind.CLASSES: "accuracy",
    Kind.LABELS: "micro_f1",
    Kind.SCORE: "pearson_and_spearman",
    Kind.TAGS: "tag_accuracy",
}
PROBLEMS = {Kind.LABELS: "multi_label_classification", Kind.SCORE: "regression"}


def make_dense(kind: Kind = Kind.CLASSES, seed: int = 0, **changes: Any) -> Any:
    """Return a tiny dense model with a head for a kind of task; its weights are random."""
    tokenizer = make_tokenizer()
    labels = LABELS[kind] or ("score",)
    fields: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "id2label": dict(enumerate(labels)),
        "label2id": {label: number for number, label in enumerate(labels)},
    }
    if kind is not Kind.TAGS:
        fields["problem_type"] = PROBLEMS.get(kind)
    auto_class = AutoModelForTokenClassification if kind is Kind.TAGS else AutoModelForSequenceClassification
    return make_model("bert", auto_class, seed, **(fields | changes))


def save_dense(folder: Path, kind: Kind = Kind.CLASSES, seed: int = 0, **changes: Any) -> Path:
    """Write a tiny dense model with its tokenizer."""
    make_dense(kind, seed, **changes).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


def save_hashed(folder: Path, kind: Kind = Kind.CLASSES, seed: int = 0, layers: int = 3, **changes: Any) -> Path:
    """Write a tiny model whose tokens exit at random layers, from four layers on, with its tokenizer."""
    tokenizer = make_tokenizer()
    table = hashee.ExitTable.at_random(tokenizer, num_layers=layers, seed=1)
    hashee.convert(make_dense(kind, seed, **changes), table, tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def make_task(kind: Kind = Kind.CLASSES, pair: bool = False, count: int = 23, targets: bool = True) -> TaskData:
    """Return a task of random texts with random labels."""
    task = Task(f"tiny-{kind}", kind, LABELS[kind], METRICS[kind], pair=pair)
    splits = {name: make_examples(kind, pair, count, seed) for seed, name in enumerate(("train", "dev", "test"))}
    test = splits["test"] if targets else Examples(splits["test"].texts, None)
    return TaskData(task, splits["train"], splits["dev"], test, f"fingerprint of {kind}", ("a note",))


def make_examples(kind: Kind, pair: bool, count: int, seed: int) -> Examples:
    draws = np.random.default_rng(seed)
    texts: list[Any] = []
    targets: list[Any] = []
    for _ in range(count):
        words = [str(word) for word in draws.choice(WORDS, size=draws.integers(2, 14))]
        text: Any = tuple(words) if kind is Kind.TAGS else " ".join(words)
        texts.append((text, "the plot") if pair else text)
        targets.append(
            {
                Kind.CLASSES: int(draws.integers(3)),
                Kind.LABELS: tuple(draws.integers(2, size=2).tolist()),
                Kind.SCORE: float(draws.normal()),
                Kind.TAGS: tuple(draws.integers(3, size=len(words)).tolist()),
            }[kind]
        )
    return Examples(texts, targets)


def one_by_one(model: Any, data: TaskData) -> list[torch.Tensor]:
    """Return the logits for each example of test, run alone: (labels,), or for tags (words, labels)."""
    tokenizer, logits = make_tokenizer(), []
    assert data.test is not None
    for text in data.test.texts:
        tagging = data.task.kind is Kind.TAGS
        columns = text if data.task.pair else (list(text) if tagging else text,)
        encoding = tokenizer(*columns, is_split_into_words=tagging, return_token_type_ids=True, return_tensors="pt")
        with torch.no_grad():
            found = model.eval()(**encoding).logits[0]
        # Every word of the tiny vocabulary is one token.
        logits.append(found[1:-1] if tagging else found)
    return logits
