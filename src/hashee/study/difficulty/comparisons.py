"""Two ways to predict the same texts, compared text by text: which is right more often, at what cost."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hashee.cost.macs import Costs, dense_macs
from hashee.data import Examples
from hashee.data.tokenized import Tokenized
from hashee.families.adapters import adapter_for
from hashee.study.cost import costs_by_exit
from hashee.study.difficulty.hypothesis_results import Comparison
from hashee.study.exit_rules import exit_layers
from hashee.study.methods.berxit import Berxit
from hashee.study.methods.early_exit import outputs_by_layer
from hashee.study.multi_exit import MultiExitModel
from hashee.training.processes import Processes
from hashee.training.stages import Fit

Array = NDArray[Any]
NORMAL = 1.96
"""Standard errors on either side of a mean that make an interval of 95 %."""


@dataclass(frozen=True)
class Arm:
    """One way to predict, on some texts."""

    name: str
    right: Array
    """How likely each text is predicted rightly: (texts,)."""
    executed_macs: float
    """Mean over the texts."""


def compare(name: str, first: Arm, second: Arm, full_depth: float) -> Comparison:
    """Compare two arms on the same texts. full_depth: multiply-accumulates of the whole backbone per text."""
    differences = 100 * (first.right.astype(np.float64) - second.right)
    error = NORMAL * float(differences.std(ddof=1)) / math.sqrt(len(differences))
    mean = float(differences.mean())
    return Comparison(
        name=name,
        first=first.name,
        second=second.name,
        first_accuracy=100 * float(first.right.mean()),
        second_accuracy=100 * float(second.right.mean()),
        difference=mean,
        low=mean - error,
        high=mean + error,
        first_speedup=full_depth / first.executed_macs,
        second_speedup=full_depth / second.executed_macs,
    )


def full_depth_macs(fit: Fit, tokenized: Tokenized) -> float:
    """Return the multiply-accumulates of the whole backbone per text."""
    shape = adapter_for(fit.backbone.config).shape(fit.backbone.config)
    return float(dense_macs(shape, shape.layers, tokenized.lengths)) / len(tokenized)


def right_of(logits: Sequence[Array], examples: Examples) -> Array:
    """Return which texts are predicted rightly: (texts,)."""
    right: Array = np.stack(logits).argmax(axis=-1) == np.asarray(examples.targets)
    return right


# --- a learned exit, and the same exits shuffled between texts ----------------------------------------------


@dataclass(frozen=True)
class Exits:
    """What a multi-exit model with a learned certainty does on some texts."""

    right: Array
    """Which texts each layer predicts rightly: (texts, layers)."""
    layers: Array
    """Exit layer of each text, from 1, at each threshold: (thresholds, texts)."""
    costs: Costs
    """Of leaving after each layer: (texts, layers)."""

    def at(self, number: int) -> tuple[Arm, Arm]:
        """Return the learned exits at a threshold, and the mean over all ways to deal them out to the texts."""
        leaves = self.layers[number]
        rows = np.arange(len(leaves))
        executed = np.asarray(self.costs.executed, dtype=np.float64)
        # In a random order every text gets each of the exit layers equally often, so the mean needs no drawing.
        shares = np.bincount(leaves - 1, minlength=self.right.shape[1]) / len(leaves)
        return (
            Arm("learned exit", self.right[rows, leaves - 1], float(executed[rows, leaves - 1].mean())),
            Arm("shuffled exits", self.right @ shares, float((executed @ shares).mean())),
        )

    def oracle(self) -> Arm:
        """Return the exits of somebody who knows at which layer each text is predicted rightly first."""
        first, ever = self.right.argmax(axis=1), self.right.max(axis=1)
        executed = np.asarray(self.costs.executed, dtype=np.float64)
        return Arm("first right layer", ever, float(executed[np.arange(len(first)), first].mean()))

    def nearest(self, speedup: float, full_depth: float) -> int:
        """Return the number of the threshold whose cost is nearest, as a ratio, to a speed-up."""
        executed = [self.at(number)[0].executed_macs for number in range(len(self.layers))]
        return min(range(len(executed)), key=lambda number: abs(math.log(full_depth / executed[number] / speedup)))


def learned_exits(model: MultiExitModel, tokenized: Tokenized, examples: Examples, processes: Processes) -> Exits:
    """Run BERxiT's model over texts and find the exit layers at all its thresholds."""
    berxit = Berxit()
    outputs = outputs_by_layer(model, tokenized, processes)
    predicted = np.stack([each.logits.argmax(-1).numpy() for each in outputs], axis=1)
    layers = [exit_layers(outputs, berxit.rule(model, knob)).numpy() for knob in berxit.knobs(model)]
    right = predicted == np.asarray(examples.targets)[:, None]
    return Exits(right, np.stack(layers), costs_by_exit(model, tokenized))
