"""Points of a trade-off between quality and cost, and the file that keeps them."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from hashee.data.run_record import counted_passes
from hashee.data.texts import PathLike
from hashee.errors import InputError
from hashee.files import replaced_atomically

DENSE, STATIC = "dense", "static"
_AS_CHEAP = 0.97
"""Tables do not reach a speed-up exactly: this part of another's is as much."""


@dataclass(frozen=True)
class TradeoffPoint:
    """A model at one cost; over several seeds the means, with the deviation of the sample."""

    name: str
    hash: str
    """What its exit table is made by; `static` for a shallower model without exits, `dense` for the whole one."""
    layers: int
    asked: float | None = None
    """The speed-up that its table was to reach."""
    speedup: float | None = None
    """Multiply-accumulates of the dense model / executed ones."""
    macs: float | None = None
    """Executed multiply-accumulates for a text."""
    dev: float | None = None
    test: float | None = None
    """The task's metric."""
    dev_std: float = 0.0
    test_std: float = 0.0
    seeds: int = 1
    seconds: float | None = None
    """What all seeds took together, without the dense model that those with exits start from."""
    folder: str | None = None
    on_front: bool = False
    """Whether no other point that is as cheap, or nearly, is better on dev."""
    skipped: str | None = None
    """Why there is no such model."""
    passes: float | None = None
    """Over the training examples, in all stages on the way to it; None where nobody knows."""

    @property
    def shown(self) -> float | None:
        """What is reported: quality on test, or on dev where the labels of test are not known."""
        return self.dev if self.test is None else self.test

    @property
    def shown_std(self) -> float:
        """The deviation of what is reported."""
        return self.dev_std if self.test is None else self.test_std


def with_front(points: Sequence[TradeoffPoint]) -> list[TradeoffPoint]:
    """Mark the points that dev would choose: no other that is as cheap, or nearly, is better there."""
    known = [(point.speedup, point.dev) for point in points if point.speedup is not None and point.dev is not None]

    def is_beaten(speedup: float, dev: float) -> bool:
        return any(
            (other_dev > dev and other_speedup >= speedup * _AS_CHEAP)
            or (other_dev == dev and other_speedup * _AS_CHEAP > speedup)
            for other_speedup, other_dev in known
        )

    return [
        replace(
            point,
            on_front=point.speedup is not None and point.dev is not None and not is_beaten(point.speedup, point.dev),
        )
        for point in points
    ]


def passes_caption(points: Sequence[TradeoffPoint]) -> str | None:
    """Say how long the models were trained; None where nobody knows of any."""
    fitted = [point for point in points if point.skipped is None]
    passes = {point.passes for point in fitted}
    if passes <= {None}:
        return None
    if len(passes) == 1:
        return f"each model had {counted_passes(passes.pop())} over the training examples"
    each = ", ".join(f"{point.name}: {counted_passes(point.passes)}" for point in fitted)
    return f"not all models had equal passes over the training examples, so they do not compare; {each}"


def write_points(points: Iterable[TradeoffPoint], path: PathLike) -> None:
    """Write points as a JSON list of objects."""
    with replaced_atomically(Path(path)) as temporary:
        rows = [asdict(point) for point in points]
        temporary.write_text(json.dumps(rows, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def read_points(path: PathLike) -> list[TradeoffPoint]:
    """Read what `write_points` wrote; fields that are not ours are left out."""
    try:
        rows: Any = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read points of a trade-off from {path}: {error}") from None
    known = {field.name for field in fields(TradeoffPoint)}
    try:
        return [TradeoffPoint(**{name: value for name, value in row.items() if name in known}) for row in rows]
    except (AttributeError, TypeError) as error:
        raise InputError(f"{path} holds no points of a trade-off ({error}); write it with hashee tradeoff") from None
