"""What many texts take on many cores: hours and money, from the count of a text and a measured rate."""

from dataclasses import asdict, dataclass
from typing import Any

from hashee.errors import InputError


@dataclass(frozen=True)
class Fleet:
    """Rows to score, and the cores that score them."""

    rows: float
    cores: int
    price: float
    """Of a core for an hour, in any currency."""

    def __post_init__(self) -> None:
        if not (0 < self.rows < float("inf") and self.cores > 0 and 0 <= self.price < float("inf")):
            raise InputError(f"rows and cores are above 0 and a price is not negative, not {self}")


@dataclass(frozen=True)
class Estimate:
    """What one model takes for all rows."""

    macs_per_text: float
    macs_per_second: float
    """Of one core."""
    texts_per_second: float
    """Of all cores."""
    hours: float
    cost: float


def estimate(macs_per_text: float, macs_per_second: float, fleet: Fleet) -> Estimate:
    """Return what rows take: `rows x MACs a text / (MACs per second of a core x cores)` seconds.

    Nothing is added for reading, tokenizing, starting and stopping, unless the rate was measured with them.
    """
    if not (macs_per_text > 0 and 0 < macs_per_second < float("inf")):
        raise InputError(f"a text of {macs_per_text} MACs at {macs_per_second} MACs per second; both must be above 0")
    texts_per_second = macs_per_second * fleet.cores / macs_per_text
    hours = fleet.rows / texts_per_second / 3600
    return Estimate(macs_per_text, macs_per_second, texts_per_second, hours, hours * fleet.cores * fleet.price)


def as_lines(fleet: Fleet, with_exits: Estimate, dense: Estimate) -> str:
    """Return two estimates side by side, in lines."""
    lines = [
        f"{fleet.rows:,.0f} rows on {fleet.cores:,} cores at {fleet.price:g} a core-hour",
        f"{'':<11}{'MMACs a text':>13}{'GMACs/s a core':>16}{'texts/s':>12}{'hours':>12}{'cost':>12}",
    ]
    for name, each in (("with exits", with_exits), ("dense", dense)):
        lines.append(
            f"{name:<11}{each.macs_per_text / 1e6:>13,.2f}{each.macs_per_second / 1e9:>16,.2f}"
            f"{each.texts_per_second:>12,.0f}{each.hours:>12,.2f}{each.cost:>12,.2f}"
        )
    lines.append(f"dense takes {dense.hours / with_exits.hours:.2f} times as long and as much")
    return "\n".join(lines)


def as_json(fleet: Fleet, with_exits: Estimate, dense: Estimate) -> dict[str, Any]:
    """Return two estimates as JSON values."""
    return {"fleet": asdict(fleet), "with_exits": asdict(with_exits), "dense": asdict(dense)}
