"""Consistency against learning: comparisons worked out by hand, and all of them on a tiny model."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fitting_data import RECIPE, make_data

from hashee.cost.macs import Costs
from hashee.data import Kind
from hashee.errors import InputError
from hashee.study.difficulty.comparisons import Arm, Exits, compare
from hashee.study.difficulty.conclusion import on_hypothesis, on_predictors, over_seeds
from hashee.study.difficulty.hypothesis import HypothesisSettings, run_hypothesis
from hashee.study.difficulty.hypothesis_results import (
    CONSISTENT,
    LEARNED,
    REFITTED,
    SWAPPED,
    Comparison,
    HypothesisResult,
    read_hypotheses,
)
from hashee.study.difficulty.results import DifficultyResult


def exits_of(right: list[list[int]], layers: list[int]) -> Exits:
    shape = np.array(right).shape
    costs = np.tile(np.arange(1, shape[1] + 1), (shape[0], 1))
    return Exits(np.array(right, dtype=bool), np.array([layers]), Costs(costs, costs))


def test_shuffled_exits_are_the_mean_over_all_orders() -> None:
    draws = np.random.default_rng(0)
    right, layers = draws.integers(0, 2, (5, 3)), draws.integers(1, 4, 5)
    learned, shuffled = exits_of(right.tolist(), layers.tolist()).at(0)
    orders = [np.random.default_rng(seed).permutation(layers) for seed in range(20_000)]
    drawn = np.mean([right[np.arange(5), order - 1].mean() for order in orders])
    assert shuffled.right.mean() == pytest.approx(drawn, abs=0.005)
    assert learned.right.tolist() == right[np.arange(5), layers - 1].tolist()
    assert learned.executed_macs == pytest.approx(shuffled.executed_macs), "the same layers cost the same"


def test_an_exit_that_knows_is_ahead_of_its_shuffle() -> None:
    right = [[0, 1], [1, 1]] * 50
    learned, shuffled = exits_of(right, [2, 1] * 50).at(0)
    found = compare("knows", learned, shuffled, full_depth=2.0)
    assert (found.first_accuracy, found.second_accuracy, found.difference) == pytest.approx((100, 75, 25))
    assert found.low > 0 and found.first_speedup == found.second_speedup == pytest.approx(2 / 1.5)


def test_intervals_cover_nineteen_times_of_twenty_what_is_not_there() -> None:
    draws = np.random.default_rng(1)
    covered = 0
    for _ in range(400):
        arms = [Arm(name, draws.random(400) < 0.7, 1.0) for name in ("one", "other")]
        found = compare("same", *arms, full_depth=1.0)
        covered += found.low < 0 < found.high
    assert 0.92 < covered / 400 < 0.98


@pytest.fixture(scope="module")
def results(backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, HypothesisResult]:
    output = tmp_path_factory.mktemp("difficulty")
    settings = HypothesisSettings(make_data(recipe=replace(RECIPE, epochs=1.0)), str(backbone), seeds=2, speedup=1.5)
    return output, run_hypothesis(settings, output)


def test_all_comparisons_are_made_at_equal_cost(results: tuple[Path, HypothesisResult]) -> None:
    _, found = results
    by_name = {each.name: each for each in found.comparisons}
    assert set(by_name) == {CONSISTENT, REFITTED, SWAPPED, *(LEARNED.format(speedup=each) for each in (1.5, 2, 3))}
    for name, each in by_name.items():
        assert each.first_speedup == pytest.approx(each.second_speedup, rel=0.25), name
        assert each.difference == pytest.approx(each.first_accuracy - each.second_accuracy)
    assert by_name[REFITTED].first_accuracy == by_name[SWAPPED].first_accuracy, "both start from the own table"
    assert 0 < found.equal_exits <= 1


def test_a_finished_seed_is_not_run_again(results: tuple[Path, HypothesisResult], backbone: Path) -> None:
    output, found = results
    written = (output / found.path).stat().st_mtime_ns
    settings = HypothesisSettings(make_data(recipe=replace(RECIPE, epochs=1.0)), str(backbone), seeds=2, speedup=1.5)
    assert run_hypothesis(settings, output) == found == read_hypotheses(output)[0]
    assert (output / found.path).stat().st_mtime_ns == written


def test_scores_have_no_such_comparison(backbone: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="tested where each text has one class"):
        run_hypothesis(HypothesisSettings(make_data(Kind.SCORE), str(backbone)), tmp_path)


# --- conclusions -----------------------------------------------------------------------------------------------


def compared(name: str, difference: float) -> Comparison:
    return Comparison(name, "a", "b", 80.0, 80.0 - difference, difference, difference - 1, difference + 1, 2.0, 2.0)


def runs(consistency: list[float], learning: list[float]) -> list[HypothesisResult]:
    return [
        HypothesisResult(
            "sst2", "minilm", seed, (compared(CONSISTENT, one), compared(LEARNED.format(speedup=2), other))
        )
        for seed, (one, other) in enumerate(zip(consistency, learning, strict=True))
    ]


@pytest.mark.parametrize(
    ("consistency", "learning", "said"),
    [
        ([5.0, 5.1, 4.9], [0.1, -0.1, 0.0], "as the paper argues"),
        ([5.0, 5.1, 4.9], [3.0, 3.1, 2.9], "the exit has learned something about texts too"),
        ([0.1, -0.1, 0.0], [3.0, 3.1, 2.9], "against the paper's argument"),
        ([9.0, -9.0, 0.1], [0.1, -0.1, 0.0], "neither consistency nor what was learned"),
    ],
)
def test_the_conclusion_follows_the_numbers(consistency: list[float], learning: list[float], said: str) -> None:
    assert said in on_hypothesis(runs(consistency, learning))[-1]


def test_intervals_are_students() -> None:
    found = over_seeds([1.0, 2.0, 3.0])
    assert (found.mean, found.low, found.high) == pytest.approx((2.0, 2 - 4.303 / 3**0.5, 2 + 4.303 / 3**0.5), abs=1e-3)
    assert over_seeds([1.0], (0.5, 1.5)).sign == 1 and over_seeds([1.0]).sign == 0


def result(predictor: str, f1: float | None, seed: int, level: str = "sentence") -> DifficultyResult:
    return DifficultyResult(
        predictor, level, f1 or 0.5, f1, f1 or 0.0, f1, 0.1, "tiny", seed, "" if predictor == "Majority" else "b"
    )


def test_predictors_are_compared_with_the_majority_over_seeds() -> None:
    majority = [result("Majority", 0.4, seed) for seed in range(3)]
    clear = [result("BiLSTM", 0.5 + 0.001 * seed, seed) for seed in range(3)]
    vague = [result("BiLSTM", value, seed) for seed, value in enumerate((0.2, 0.5, 0.7))]
    (said,) = on_predictors([*majority, *clear])
    assert (
        "BiLSTM (b) has the highest F1 of the negative label, 50.1 %, +10.1 points" in said and "a clear gain" in said
    )
    (said,) = on_predictors([*majority, *vague])
    assert "which cannot be told from none" in said
    (said,) = on_predictors([majority[0], clear[0]])
    assert "which one seed cannot confirm" in said
    assert on_predictors(majority) == []
