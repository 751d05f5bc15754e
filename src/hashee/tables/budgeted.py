"""Of a scale of tables, from the cheapest to the most expensive, the one that meets an executed speed-up."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hashee.errors import ImpossibleSpeedup
from hashee.tables.budget import Budget, Seen

Layers = NDArray[np.int64]

# A speed-up that is this close above the wanted one counts as met; texts differ by more.
_CLOSE = 1e-3
# Halvings after which two positions on a scale are next to each other.
_HALVINGS = 60
# Types at most that are held back because moving them on would miss the speed-up; real texts need a handful.
_MOST_HELD = 40


@dataclass(frozen=True)
class Scale:
    """Exit layers for every position from 0 (cheapest) to 1 (most expensive); none falls from one to the next.

    ids: (types,) the ids that exit; all others stay to the last layer. layers_at: position -> (types,).
    ordered: whether no type may exit before one that stands earlier in `ids`.
    seen: the corpus that showed these types, so that new texts hold others; None if they are the whole vocabulary.
    """

    ids: NDArray[np.int64]
    num_layers: int
    vocab_size: int
    layers_at: Callable[[float], Layers]
    ordered: bool
    seen: Seen | None

    def below(self, position: float, ceiling: Layers) -> Layers:
        """Return the layers at a position, none above its type's ceiling. (types,)"""
        layers = np.minimum(self.layers_at(position), ceiling)
        # In an order, what holds a type back holds back all before it.
        return np.minimum.accumulate(layers[::-1])[::-1] if self.ordered else layers

    def exit_layers(self, layers: Layers) -> Layers:
        """Spread the layers of the types over the vocabulary. (vocab,)"""
        exit_layers = np.full(self.vocab_size, self.num_layers, dtype=np.int64)
        exit_layers[self.ids] = layers
        return exit_layers

    def speedup(self, layers: Layers, budget: Budget) -> float:
        """Return the executed speed-up of the layers of the types on the texts of a budget."""
        return budget.speedup_of(self.exit_layers(layers), self.num_layers, counted=budget.is_corpus(self.seen))


@dataclass(frozen=True)
class Solution:
    """The table that meets a budget, its position on the scale, and its executed speed-up."""

    exit_layers: Layers
    position: float
    speedup: float

    def settings(self, budget: Budget) -> dict[str, Any]:
        """Return what the table should remember of its budget."""
        return {"speedup": budget.speedup, "counted_speedup": round(self.speedup, 4)}


def solve(scale: Scale, budget: Budget) -> Solution:
    """Return the most expensive table of a scale that still reaches the budget's speed-up.

    Where one step of the scale jumps over the speed-up, the types that move in it go on one by one as far as they can;
    the first that cannot is held back, and the scale goes on without it.
    """

    def speedup(layers: Layers) -> float:
        return scale.speedup(layers, budget)

    ceiling = np.full(len(scale.ids), scale.num_layers, dtype=np.int64)
    position, wanted = 0.0, budget.speedup
    check_possible(scale, budget)
    for _ in range(_MOST_HELD):
        position, next_position = _bisect(scale, ceiling, position, lambda layers: speedup(layers) / wanted)
        layers, later = scale.below(position, ceiling), scale.below(next_position, ceiling)
        # In an order the last type moves first, so that no earlier one exits after it.
        moving = np.flatnonzero(later != layers)[::-1]
        held = _move_on(layers, later, moving, lambda moved: speedup(moved) >= wanted)
        reached = speedup(layers)
        if held is None or reached <= wanted * (1 + _CLOSE):
            break
        ceiling[held] = layers[held]
    return Solution(scale.exit_layers(layers), position, reached)


def _bisect(scale: Scale, ceiling: Layers, low: float, ratio: Callable[[Layers], float]) -> tuple[float, float]:
    """Return two positions, the first fast enough and the second not, with as few types as possible between them.

    ratio: speed-up of a table / speed-up wanted. A position where that is close to 1 is returned twice.
    """
    high = 1.0
    fast, slow = scale.below(low, ceiling), scale.below(high, ceiling)
    for _ in range(_HALVINGS):
        if np.count_nonzero(slow != fast) <= 1:
            break
        middle = (low + high) / 2
        layers = scale.below(middle, ceiling)
        reached = ratio(layers)
        if 1 <= reached <= 1 + _CLOSE:
            return middle, middle
        if reached >= 1:
            low, fast = middle, layers
        else:
            high, slow = middle, layers
    return low, high


def _move_on(layers: Layers, later: Layers, moving: NDArray[np.int64], fits: Callable[[Layers], bool]) -> int | None:
    """Give the moving types, from the first on, their later layers as long as that fits; return the first it does not.

    That one goes as far as it can. layers: (types,), changed in position.
    """

    def moved(count: int) -> Layers:
        result = layers.copy()
        result[moving[:count]] = later[moving[:count]]
        return result

    low, high = 0, len(moving) + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(moved(middle)) else (low, middle)
    layers[:] = moved(low)
    if low == len(moving):
        return None
    stuck = int(moving[low])
    for layer in range(int(later[stuck]) - 1, int(layers[stuck]), -1):
        between = layers.copy()
        between[stuck] = layer
        if fits(between):
            layers[:] = between
            break
    return stuck


def check_possible(scale: Scale, budget: Budget) -> None:
    """Refuse a speed-up outside the range of the scale."""
    cheapest, wanted = scale.layers_at(0.0), budget.speedup
    highest, lowest = scale.speedup(cheapest, budget), scale.speedup(scale.layers_at(1.0), budget)
    if lowest <= wanted <= highest:
        return
    first = int(cheapest.min())
    message = f"a speed-up of {wanted:g}x cannot be had: {lowest:.2f}x to {highest:.2f}x with exits from {first}"
    if first > 0:
        from_0 = scale.speedup(np.where(cheapest == first, 0, cheapest), budget)
        message += f"; exits from 0 reach {from_0:.2f}x (min_exit=0)"
    raise ImpossibleSpeedup(message, lowest, highest)
