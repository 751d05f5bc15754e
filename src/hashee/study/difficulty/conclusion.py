"""What the numbers say, in sentences that are made of them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from hashee.packages import require
from hashee.study.difficulty.hypothesis_results import CONSISTENT, SWAPPED, HypothesisResult
from hashee.study.difficulty.results import DifficultyResult, Group, by_group

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean over seeds and its interval of 95 % by Student's t; of one seed, what was measured over texts."""

    mean: float
    low: float | None
    high: float | None
    seeds: int

    @property
    def sign(self) -> int:
        """1 or -1 where the whole interval is above or below 0; 0 where it is not, or there is none."""
        if self.low is None or self.high is None:
            return 0
        return 1 if self.low > 0 else -1 if self.high < 0 else 0

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.mean:+.1f} points (one seed, no interval)"
        return f"{self.mean:+.1f} points ({self.low:+.1f} to {self.high:+.1f})"


def over_seeds(values: Sequence[float], alone: tuple[float, float] | None = None) -> Interval:
    """Return the interval of a mean over seeds. alone: the interval to give for one seed."""
    if len(values) < 2:
        low, high = alone or (None, None)
        return Interval(values[0], low, high, 1)
    width = _student(len(values)) * stdev(values) / math.sqrt(len(values))
    return Interval(mean(values), mean(values) - width, mean(values) + width, len(values))


def _student(values: int) -> float:
    stats = require("scipy.stats", "train", "an interval over seeds")
    return float(stats.t.ppf((1 + CONFIDENCE) / 2, values - 1))


def on_predictors(results: Sequence[DifficultyResult]) -> list[str]:
    """Say of each set whether the best predictor, and which, is better than always predicting the majority."""
    sentences = []
    groups = {group: own for group, own in by_group(results).items() if not group.variant}
    for data in dict.fromkeys(group.data for group in groups):
        own = {group: seeds for group, seeds in groups.items() if group.data == data}
        level = next(iter(own)).level
        majority = next((seeds for group, seeds in own.items() if group.predictor == "Majority"), None)
        others = {group: seeds for group, seeds in own.items() if group.predictor != "Majority"}
        if majority and others:
            sentences.append(_human(data, majority, others) if level == "human" else _model(data, majority, others))
    return sentences


def _human(data: str, majority: Sequence[DifficultyResult], others: dict[Group, list[DifficultyResult]]) -> str:
    group, seeds = max(others.items(), key=lambda each: mean(result.accuracy for result in each[1]))
    gain = over_seeds([100 * (each.accuracy - _same_seed(majority, each).accuracy) for each in seeds])
    fitted = [max(epoch.train_accuracy for epoch in each.curve) for each in seeds if each.curve]
    on_train = f", after up to {100 * mean(fitted):.1f} % on train" if fitted else ""
    accuracy = 100 * mean(each.accuracy for each in seeds)
    return (
        f"{data}: of all predictors {_named(group)} has the highest accuracy on test, {accuracy:.1f} %{on_train}; "
        f"that is {gain} above the majority, {_verdict(gain)}."
    )


def _model(data: str, majority: Sequence[DifficultyResult], others: dict[Group, list[DifficultyResult]]) -> str:
    group, seeds = max(others.items(), key=lambda each: mean(result.f1 or 0.0 for result in each[1]))
    f1 = over_seeds([100 * ((each.f1 or 0.0) - (_same_seed(majority, each).f1 or 0.0)) for each in seeds])
    accuracy = over_seeds([100 * (each.accuracy - _same_seed(majority, each).accuracy) for each in seeds])
    missed = 100 * (1 - mean(each.recall for each in seeds))
    highest = 100 * mean(each.f1 or 0.0 for each in seeds)
    return (
        f"{data}: {_named(group)} has the highest F1 of the negative label, {highest:.1f} %, {f1} "
        f"against the majority's, {_verdict(f1)}; its accuracy is {accuracy} against the "
        f"majority's, {_verdict(accuracy)}. It misses {missed:.0f} % of what layers get wrong."
    )


def on_hypothesis(results: Sequence[HypothesisResult]) -> list[str]:
    """Say of each task what consistency, and what learning, are worth."""
    sentences = []
    for task, backbone in dict.fromkeys((result.task, result.backbone) for result in results):
        own = [result for result in results if (result.task, result.backbone) == (task, backbone)]
        gains = gains_of(own)
        for name, gain in gains.items():
            sentences.append(
                f"{task}, {backbone}: {name}: {gain} for the first, {_verdict(gain)} ({gain.seeds} seed"
                f"{'s' if gain.seeds > 1 else ''})."
            )
        consistency = [gain for name, gain in gains.items() if name in (CONSISTENT, SWAPPED)]
        learning = [gain for name, gain in gains.items() if name.startswith("learned")]
        sentences.append(f"{task}, {backbone}: {_weighed(consistency, learning)}")
    return sentences


def gains_of(results: Sequence[HypothesisResult]) -> dict[str, Interval]:
    """Return what the first arm of each comparison is ahead, over seeds."""
    found = {}
    for name in dict.fromkeys(each.name for result in results for each in result.comparisons):
        own = [each for result in results for each in result.comparisons if each.name == name]
        found[name] = over_seeds([each.difference for each in own], (own[0].low, own[0].high))
    return found


def _weighed(consistency: Sequence[Interval], learning: Sequence[Interval]) -> str:
    """Say whether the numbers bear out that consistency works and learned difficulty does not."""
    works = any(gain.sign > 0 for gain in consistency)
    learns = any(gain.sign > 0 for gain in learning)
    told = {
        (
            True,
            False,
        ): "consistency pays and what the exit has learned cannot be told from chance, as the paper argues.",
        (
            True,
            True,
        ): "consistency pays, but the exit has learned something about texts too, against the paper's argument.",
        (
            False,
            True,
        ): "the exit has learned something about texts, and a gain by consistency cannot be told from chance, "
        "against the paper's argument.",
        (False, False): "neither consistency nor what was learned makes a difference that can be told from chance.",
    }
    most = max((gain.mean for gain in consistency), default=0.0), max((gain.mean for gain in learning), default=0.0)
    sizes = f" The largest gains are {most[0]:+.1f} points by consistency and {most[1]:+.1f} by learning."
    return told[works, learns] + sizes


def _verdict(gain: Interval) -> str:
    if gain.low is None:
        return "which one seed cannot confirm"
    return {1: "a clear gain", -1: "a clear loss", 0: "which cannot be told from none"}[gain.sign]


def _named(group: Group) -> str:
    return f"{group.predictor} ({group.backbone})" if group.backbone else group.predictor


def _same_seed(majority: Sequence[DifficultyResult], result: DifficultyResult) -> DifficultyResult:
    """Return the majority's result of the same seed, or the first: it hardly depends on the seed."""
    return next((each for each in majority if each.seed == result.seed), majority[0])
