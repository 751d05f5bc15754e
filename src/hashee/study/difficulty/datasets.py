"""Sets of texts labelled with their difficulty: read from folders, the authors' among them, and written there."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hashee.data import Columns, Examples, Kind, Recipe, Task
from hashee.data.fingerprint import fingerprint_of
from hashee.data.reading import Rows, read_split
from hashee.data.split_sources import find_sources
from hashee.data.task_types import TASK_TYPES
from hashee.errors import InputError
from hashee.files import read_json, replaced_atomically, write_json

Level: TypeAlias = Literal["human", "sentence", "token"]
LEVELS: tuple[Level, ...] = ("human", "sentence", "token")
AUTHORS = {"snli-human": "SNLI-difficulty-human", "snli-model": "SNLI-difficulty-model"}
"""The sets that the paper's authors published, by name, and their folders below the one that HASHEE_DATA names."""
FEWEST = 20
"""Rows that a split needs to tell anything."""
ABOUT = "difficulty.json"
LABELS = TASK_TYPES[Kind.LABELS]
"""What difficulties are learned as: a label for each layer."""
_RECIPE = Recipe(epochs=4.0)


@dataclass(frozen=True)
class DifficultySet:
    """Texts with a target for each layer: 1 where it is right, 0 where it is wrong, and so the text difficult.

    Human-defined difficulty has one column, as of a model with one layer: 1 where annotators agree.
    """

    name: str
    level: Level
    train: Examples
    """Targets: (layers,) of 0 and 1 for each text, or at token level (words, layers)."""
    test: Examples
    about: Mapping[str, Any] = field(default_factory=dict)
    """How the set was made, where that is known."""

    @property
    def layers(self) -> int:
        """How many layers are judged."""
        return width_of(self.level, self.train.targets or ())

    @cached_property
    def task(self) -> Task:
        """The set as a task: an output for each layer, of a text or of each of its words."""
        token = self.level == "token"
        pair = not token and not isinstance(self.train.texts[0], str)
        labels = tuple(f"layer {number}" for number in range(1, self.layers + 1))
        kind, metric = (Kind.TAGS, "tag_accuracy") if token else (Kind.LABELS, "micro_f1")
        return Task(self.name, kind, labels, metric, pair=pair, recipe=_RECIPE)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of all texts and targets."""
        return fingerprint_of(self.task, self.train, self.test, None)

    def statistics(self) -> dict[str, Any]:
        """Return sizes, and for each layer the share of texts or words that it gets right, by split."""
        splits = {"train": self.train, "test": self.test}
        return {
            split: {
                "texts": len(examples),
                "instances": len(targets := flat_targets(self.level, examples)),
                "right": [round(float(share), 4) for share in targets.mean(axis=0)],
            }
            for split, examples in splits.items()
        }


def flat_targets(level: Level, examples: Examples) -> NDArray[np.int64]:
    """Return the targets of all texts, or of all words of all texts: (instances, layers)."""
    targets: Any = examples.targets or ()
    rows = [row for text in targets for row in text] if level == "token" else list(targets)
    return np.asarray(rows, dtype=np.int64)


def width_of(level: Level, targets: Sequence[Any]) -> int:
    """Return how many layers targets tell of."""
    first: Any = targets[0][0] if level == "token" else targets[0]
    return len(first)


# --- reading -----------------------------------------------------------------------------------------------


def load_set(name_or_folder: str | Path) -> DifficultySet:
    """Read a set: one of the authors' by its name, or a folder with train and test files.

    Rows have `label`, 1 for difficult (human-defined difficulty), or `labels`, a 0 or 1 for each layer, of a text or
    of each of its words (`tokens`).
    """
    name = str(name_or_folder)
    folder = _authors_folder(name) if name in AUTHORS else Path(name)
    if not folder.is_dir():
        raise InputError(
            f"{name} is no folder and none of {', '.join(AUTHORS)}; build it: hashee study difficulty build"
        )
    sources = find_sources(folder, None)
    held_out = sources.test or sources.dev
    if held_out is None:
        raise InputError(f"{folder} has no test file; a set of difficulties needs train and test")
    splits = {
        split: read_split(source, Columns(), None, labelled=True)
        for split, source in (("train", sources.train), ("test", held_out))
    }
    levels = {split: _level_of(rows) for split, rows in splits.items()}
    if levels["train"] != levels["test"]:
        raise InputError(f"{folder} has {levels['train']} labels in train but {levels['test']} labels in test")
    level = levels["train"]
    made = {split: Examples(rows.texts, _targets(rows, level)) for split, rows in splits.items()}
    about = read_json(folder / ABOUT) or {}
    found = DifficultySet(str(about.get("name") or _plain(name)), level, made["train"], made["test"], about)
    return checked(found)


def checked(data: DifficultySet) -> DifficultySet:
    """Refuse a set whose splits are too small, or differ in their layers."""
    for split, examples in (("train", data.train), ("test", data.test)):
        if len(examples) < FEWEST:
            raise InputError(
                f"{split} of {data.name} has {len(examples)} rows, too few to tell anything; it needs at least {FEWEST}"
            )
    widths = {
        split: {len(row) for row in _rows(data.level, examples)}
        for split, examples in (("train", data.train), ("test", data.test))
    }
    if widths["train"] != widths["test"] or len(widths["train"]) != 1:
        shown = {split: ", ".join(map(str, sorted(found))) for split, found in widths.items()}
        raise InputError(
            f"the labels of {data.name} differ between train and dev: for {shown['train']} layers in train, for "
            f"{shown['test']} in test; label both with one model"
        )
    return data


def _rows(level: Level, examples: Examples) -> Sequence[Any]:
    targets: Any = examples.targets or ()
    return [row for text in targets for row in text] if level == "token" else targets


def _authors_folder(name: str) -> Path:
    root = os.environ.get("HASHEE_DATA")
    if not root:
        raise InputError(f"{name} lies in the folder that the environment variable HASHEE_DATA names, which is not set")
    folder = Path(root) / AUTHORS[name]
    if not folder.is_dir():
        raise InputError(f"HASHEE_DATA is {root!r}, which has no folder {AUTHORS[name]}; put it there")
    return folder


def _plain(name: str) -> str:
    return name if name in AUTHORS else Path(name).resolve().name


def _level_of(rows: Rows) -> Level:
    assert rows.labels is not None
    if rows.words:
        return "token"
    return "sentence" if isinstance(rows.labels[0], list) else "human"


def _targets(rows: Rows, level: Level) -> list[Any]:
    """Turn labels into targets, refusing what is neither 0 nor 1."""
    targets: list[Any] = []
    for index, label in enumerate(rows.labels or ()):
        try:
            if level == "token":
                target: Any = tuple(tuple(map(_bit, row)) for row in label)
                if len(target) != len(rows.texts[index]):
                    raise ValueError(f"{len(target)} rows of labels for {len(rows.texts[index])} words")
            elif level == "sentence":
                target = tuple(map(_bit, label))
            else:
                # Files say 1 for difficult; targets say 1 for right, as all layers do.
                target = (1 - _bit(label),)
        except (TypeError, ValueError) as error:
            raise InputError(f"{rows.location(index)}: no labels of difficulty ({error}); give 0 or 1") from None
        targets.append(target)
    return targets


def _bit(value: Any) -> int:
    if value not in (0, 1):
        raise ValueError(f"{value!r} is neither 0 nor 1")
    return int(value)


# --- writing -----------------------------------------------------------------------------------------------


def save_set(data: DifficultySet, folder: Path) -> Path:
    """Write a set to a folder that `load_set` reads, with its statistics."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, examples in (("train", data.train), ("test", data.test)):
        targets: Any = examples.targets or ()
        with replaced_atomically(folder / f"{split}.jsonl") as unfinished:
            lines = (_row(data.level, text, target) for text, target in zip(examples.texts, targets, strict=True))
            unfinished.write_text("".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines), "utf-8")
    write_json(folder / ABOUT, dict(data.about) | {"name": data.name, "level": data.level} | data.statistics())
    return folder


def _row(level: Level, text: Any, target: Any) -> dict[str, Any]:
    if level == "token":
        return {"tokens": list(text), "labels": [list(row) for row in target]}
    texts = {"text": text} if isinstance(text, str) else {"premise": text[0], "hypothesis": text[1]}
    return texts | ({"label": 1 - target[0]} if level == "human" else {"labels": list(target)})
