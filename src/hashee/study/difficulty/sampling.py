"""The splits that predictors learn from: a dev split cut off train, and rare classes sampled over."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from hashee.data import Examples, Task
from hashee.data.splits import cut_off_dev, part_of
from hashee.study.difficulty.datasets import LABELS, DifficultySet, Level

DEV_SHARE = 0.1
HALF_WAY = 0.5
"""How far classes are evened out: 0 leaves them as they are, 1 makes them equally frequent. The paper does not say;
at the square root of the ratio, linear predictors come out as in its table (docs/difficulty.md)."""


@dataclass(frozen=True)
class Splits:
    """What a predictor is given."""

    level: Level
    task: Task
    train: Examples
    """With examples of rare classes several times."""
    seen: Examples
    """The same examples, each once."""
    dev: Examples
    test: Examples
    fingerprint: str


def splits_of(data: DifficultySet, seed: int, oversampling: float = HALF_WAY) -> Splits:
    """Cut a dev split off train and sample over what is rare in the rest, both drawn with the seed."""
    seen, dev = cut_off_dev(data.train, LABELS, DEV_SHARE, seed)
    train = part_of(seen, oversampled(data.level, seen, oversampling, seed))
    return Splits(data.level, data.task, train, seen, dev, data.test, data.fingerprint)


def oversampled(level: Level, examples: Examples, power: float, seed: int) -> list[int]:
    """Return the indices of examples, those of rare classes more often.

    An example of a class that is `r` times rarer than the most frequent one comes `r ** power` times on average.
    """
    classes = [difficulty_class(level, target) for target in examples.targets or ()]
    counts = Counter(classes)
    most = max(counts.values())
    times = np.array([(most / counts[each]) ** power for each in classes])
    draws = np.random.default_rng([seed, len(classes)]).random(len(classes))
    repeats = np.floor(times).astype(np.int64) + (draws < times % 1)
    return np.repeat(np.arange(len(classes)), repeats).tolist()


def difficulty_class(level: Level, target: Any) -> int:
    """Return how many layers get an example right; of a text of words, its most difficult word."""
    return min(sum(word) for word in target) if level == "token" else sum(target)
