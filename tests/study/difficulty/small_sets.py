"""Sets of difficulties that can be learned from one word, in seconds, and files with annotators."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from fitting_data import WORDS

from hashee.data import Examples
from hashee.study.difficulty.datasets import DifficultySet, Level

LAYERS = 4
HARD = "zebra"
"""Whoever holds this word is wrong in the upper half of the layers."""


def make_set(level: Level = "sentence", train: int = 120, test: int = 60, layers: int = LAYERS) -> DifficultySet:
    """Return a set in which texts, or words, with `HARD` are difficult, and all others easy."""
    width = 1 if level == "human" else layers
    return DifficultySet("tiny", level, _examples(level, train, 0, width), _examples(level, test, 1, width))


def _examples(level: Level, count: int, seed: int, layers: int) -> Examples:
    draws = np.random.default_rng(seed)
    others = [word for word in WORDS if word != HARD]
    texts: list[Any] = []
    targets: list[Any] = []
    for _ in range(count):
        words = list(map(str, draws.choice(others, size=draws.integers(3, 8))))
        if draws.random() < 0.4:
            words[draws.integers(len(words))] = HARD
        if level == "token":
            texts.append(tuple(words))
            targets.append(tuple(_target(word == HARD, layers) for word in words))
        else:
            texts.append(" ".join(words))
            targets.append(_target(HARD in words, layers))
    return Examples(texts, targets)


def _target(hard: bool, layers: int) -> tuple[int, ...]:
    return tuple(int(not hard or layer < layers // 2) for layer in range(layers))


def write_annotated(path: Path, difficult: int, simple: int, column: str = "annotator_labels") -> Path:
    """Write rows of which some have no majority among four annotators."""
    rows = [{"text": f"difficult {number}", column: [0, 0, 1, 1]} for number in range(difficult)]
    rows += [{"text": f"simple {number}", column: [number % 3] * 3 + [(number + 1) % 3]} for number in range(simple)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
