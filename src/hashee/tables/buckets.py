"""From ranks to buckets, from buckets to layers: the rules that all table builders share."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hashee.errors import TableError

if TYPE_CHECKING:
    from hashee.tables.budget import Budget

MOST_LAYERS = 10_000
"""No encoder is nearly as deep; a larger number is a mistake that would take minutes and gigabytes to notice."""
MOST_BUCKETS = 1_000_000


@dataclass(frozen=True)
class Buckets:
    """`num_buckets` groups of tokens spread evenly over `num_layers` layers; equally large, or sized to meet a budget.

    num_layers: depth of the model, at least 1.
    num_buckets: fewer than, as many as, or more than the layers.
    min_exit: 1, or 0 to let the first bucket exit before the first layer.
    budget: executed speed-up to meet by moving the cuts between the buckets.
    """

    num_layers: int
    num_buckets: int
    min_exit: int = 1
    budget: "Budget | None" = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_layers", whole_number("num_layers", self.num_layers, 1, MOST_LAYERS))
        object.__setattr__(self, "num_buckets", whole_number("num_buckets", self.num_buckets, 1, MOST_BUCKETS))
        if self.min_exit not in (0, 1):
            raise TableError(f"min_exit={self.min_exit!r} must be 1, or 0 to let the first bucket exit before layer 1")

    @classmethod
    def over(
        cls, num_layers: int, num_buckets: int | None = None, min_exit: int = 1, budget: "Budget | None" = None
    ) -> "Buckets":
        """Return as many buckets as layers unless `num_buckets` is given."""
        return cls(num_layers, num_layers if num_buckets is None else num_buckets, min_exit, budget)

    def settings(self) -> dict[str, Any]:
        """Return what a table cut into these buckets should remember."""
        return {"num_buckets": self.num_buckets, "min_exit": self.min_exit}

    def layers(self) -> NDArray[np.int64]:
        """Return the exit layer of each bucket: 1 + floor(L*b/B), and `min_exit` for the first. (buckets,)"""
        layers = 1 + self.num_layers * np.arange(self.num_buckets, dtype=np.int64) // self.num_buckets
        layers[0] = self.min_exit
        return layers

    def cut(self, count: int) -> NDArray[np.int64]:
        """Return the bucket of each rank, floor(B*rank/count), so that sizes differ by at most one. (count,)"""
        return self.num_buckets * np.arange(count, dtype=np.int64) // max(count, 1)

    def layers_at(self, positions: NDArray[np.float64], warp: float) -> NDArray[np.int64]:
        """Return the layer of each position, 0 to below 1, with warped cuts between the buckets. (positions,)

        Cut b of B lies at (b/B)^warp: equal buckets for 1, all in the first bucket for 0, all in the last for infinity.
        """
        cuts = (np.arange(1, self.num_buckets) / self.num_buckets) ** warp
        return self.layers()[np.searchsorted(cuts, positions, side="right")]

    def layers_of_ranking(self, ranking: NDArray[np.int64], vocab_size: int) -> NDArray[np.int64]:
        """Give ranked ids, first to exit first, equally large buckets; all other ids the last layer.

        ranking: (ranked,) token ids. Returns (vocab_size,).
        """
        exit_layers = np.full(vocab_size, self.num_layers, dtype=np.int64)
        exit_layers[ranking] = self.layers()[self.cut(len(ranking))]
        return exit_layers


def whole_number(name: str, value: object, at_least: int, at_most: int | None = None) -> int:
    """Return `value` as an int, or refuse it by name."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or value < at_least or (at_most is not None and value > at_most):  # type: ignore[operator]
        bounds = f"of at least {at_least}" if at_most is None else f"from {at_least} to {at_most}"
        raise TableError(f"{name}={value!r} must be a whole number {bounds}")
    return int(value)  # type: ignore[call-overload, no-any-return]
