"""Result files of the hypothesis: one JSON for each task, backbone and seed."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hashee.errors import InputError

FOLDER = "hypothesis"
CONSISTENT = "random table, the same in inference against another"
REFITTED = "importance table, own seed's against another seed's, each in training and inference"
SWAPPED = "importance table, the same in inference against another seed's"
LEARNED = "learned exit against the same exits shuffled between texts, at about {speedup:g}x"


@dataclass(frozen=True)
class Comparison:
    """How much more often one arm is right than the other, in percent points, and how many times cheaper each is."""

    name: str
    first: str
    second: str
    first_accuracy: float
    second_accuracy: float
    difference: float
    low: float
    high: float
    """Interval of 95 % of the difference, over texts."""
    first_speedup: float
    """Full depth of the backbone / executed multiply-accumulates."""
    second_speedup: float


@dataclass(frozen=True)
class HypothesisResult:
    """All comparisons with one seed."""

    task: str
    backbone: str
    seed: int
    comparisons: tuple[Comparison, ...]
    split: str = "test"
    equal_exits: float = 0.0
    """Share of tokens of the split that exit at the same layer in both seeds' importance tables."""
    settings: dict[str, Any] = field(default_factory=dict)
    fingerprint: str = ""
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """Where the file lies below the folder of results of difficulty."""
        return Path(FOLDER) / f"{self.task}-{self.backbone}-seed{self.seed}.json"


def read_hypothesis(path: Path) -> HypothesisResult:
    """Read one result file."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        comparisons = tuple(Comparison(**each) for each in values.pop("comparisons"))
        return HypothesisResult(comparisons=comparisons, **values)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is no result of `hashee study difficulty run --hypothesis` ({error})") from None


def read_hypotheses(folder: Path) -> Sequence[HypothesisResult]:
    """Return all results below the folder of results of difficulty."""
    return [read_hypothesis(path) for path in sorted((folder / FOLDER).glob("*-seed*.json"))]
