"""The rules by which sequences leave, on numbers worked out by hand."""

import math

import pytest
import torch

from hashee.study.exit_rules import (
    CertaintyAbove,
    ConfidenceAbove,
    EntropyBelow,
    Patience,
    confidence,
    entropy,
    exit_layers,
)
from hashee.training.outputs import ExitOutputs


def classes(*rows: list[int]) -> list[ExitOutputs]:
    """Return outputs in which each layer is sure of a class. rows: the class of every sequence, a list for a layer."""
    return [
        ExitOutputs(layer, 20.0 * torch.nn.functional.one_hot(torch.tensor(row), 3).float())
        for layer, row in enumerate(rows, start=1)
    ]


def test_patience_counts_layers_that_agree_in_a_row() -> None:
    outputs = classes([0, 0, 0], [0, 1, 1], [0, 1, 0], [0, 1, 1], [1, 1, 1], [1, 1, 1])
    assert exit_layers(outputs, Patience(1)).tolist() == [2, 3, 5]
    assert exit_layers(outputs, Patience(2)).tolist() == [3, 4, 6]
    assert exit_layers(outputs, Patience(3)).tolist() == [4, 5, 6]
    assert exit_layers(outputs, Patience(6)).tolist() == [6, 6, 6], "nobody has more patience than there are layers"


def test_scores_agree_within_a_tolerance() -> None:
    outputs = [
        ExitOutputs(layer, torch.tensor([[score]])) for layer, score in enumerate((1.0, 1.4, 1.45, 1.2), start=1)
    ]
    assert exit_layers(outputs, Patience(1, tolerance=0.1)).tolist() == [3]
    assert exit_layers(outputs, Patience(1, tolerance=0.5)).tolist() == [2]
    assert exit_layers(outputs, Patience(2, tolerance=0.1)).tolist() == [4], "the last layer lets everybody go"


def test_entropy_and_confidence_by_hand() -> None:
    logits = torch.tensor([[0.0, 0.0], [math.log(3.0), 0.0]])
    quarter = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert entropy(logits).tolist() == pytest.approx([math.log(2), quarter])
    assert entropy(logits, normalised=True).tolist() == pytest.approx([1.0, quarter / math.log(2)])
    assert confidence(logits).tolist() == pytest.approx([0.5, 0.75])


def test_a_threshold_of_zero_lets_nobody_leave_early() -> None:
    outputs = classes([0], [0], [0])
    assert exit_layers(outputs, EntropyBelow(0.0)).tolist() == [3]
    assert exit_layers(outputs, EntropyBelow(0.1)).tolist() == [1]
    assert exit_layers(outputs, ConfidenceAbove(1.01)).tolist() == [3]
    assert exit_layers(outputs, ConfidenceAbove(0.9)).tolist() == [1]


def test_learned_certainty_decides() -> None:
    logits = torch.zeros(2, 3)
    outputs = [ExitOutputs(layer, logits, torch.tensor([sure, 0.4])) for layer, sure in ((1, 0.2), (2, 0.8), (3, 0.1))]
    assert exit_layers(outputs, CertaintyAbove(0.5)).tolist() == [2, 3]
