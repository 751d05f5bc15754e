"""Result files of the study of difficulty: one JSON for each predictor and seed."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from hashee.errors import InputError
from hashee.files import write_json
from hashee.study.difficulty.sampling import HALF_WAY

FOLDER = "difficulty"
"""Below the folder of the study's results; its files lie one level deeper than those of runs, which are read alone."""


@dataclass(frozen=True)
class Epoch:
    """How good a predictor is after so many passes over the training examples."""

    epoch: float
    train_accuracy: float
    """On the training examples, each once; of many, on some of them."""
    test_accuracy: float
    dev: float
    """What the best pass is chosen by."""


@dataclass(frozen=True)
class DifficultyResult:
    """How well a predictor learns the difficulties of a set with a seed; figures are those of the test split."""

    predictor: str
    level: str
    """human, sentence or token."""
    accuracy: float
    precision: float | None
    """Over the negative label, as recall and F1; None where it is never predicted."""
    recall: float
    f1: float | None
    calibration_error: float
    data: str
    """The set's name."""
    seed: int
    backbone: str = ""
    """Whose tokens, embeddings or layers are read; empty for Majority."""
    layer_accuracy: tuple[float, ...] = ()
    negatives: float = 0.0
    """Share of negative labels in test."""
    curve: tuple[Epoch, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    statistics: Mapping[str, Any] = field(default_factory=dict)
    """Sizes and the share that each layer gets right, by split."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """How the set was built."""
    seconds: float = 0.0
    fingerprint: str = ""
    """Of settings and data; another one means that the result is stale."""
    versions: Mapping[str, str] = field(default_factory=dict)
    hardware: Mapping[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """Where the file lies below the folder of these results."""
        parts = [self.backbone, self.predictor, self.variant, f"seed{self.seed}"]
        return Path(self.data) / ("-".join(part for part in parts if part) + ".json")

    @property
    def variant(self) -> str:
        """What tells it from the predictor as the study runs it: `oversampling1`, or nothing."""
        power = self.settings.get("oversampling", HALF_WAY)
        return "" if power == HALF_WAY else f"oversampling{power:g}"

    def write(self, folder: Path) -> Path:
        """Write the file whole or not at all, and return where."""
        path = folder / self.path
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, asdict(self))
        return path


def read_result(path: Path) -> DifficultyResult:
    """Read one result file."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        known = {each.name for each in fields(DifficultyResult)}
        kept = {name: value for name, value in values.items() if name in known}
        curve = tuple(Epoch(**epoch) for epoch in values.get("curve", ()))
        return DifficultyResult(**kept | {"curve": curve, "layer_accuracy": tuple(values.get("layer_accuracy", ()))})
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is no result of `hashee study difficulty run` ({error}); run it again") from None


def read_results(folder: Path) -> Iterator[DifficultyResult]:
    """Yield all results below a folder, in the order of their names; none if there is no such folder."""
    for path in sorted(folder.glob("*/*-seed*.json")):
        if path.parent.name != "hypothesis":
            yield read_result(path)


@dataclass(frozen=True)
class Group:
    """What results have in common that differ in their seeds only."""

    level: str
    data: str
    predictor: str
    backbone: str
    variant: str


def by_group(results: Iterable[DifficultyResult]) -> dict[Group, list[DifficultyResult]]:
    """Group results that differ in their seeds only."""
    found: dict[Group, list[DifficultyResult]] = {}
    for each in results:
        found.setdefault(Group(each.level, each.data, each.predictor, each.backbone, each.variant), []).append(each)
    return found
