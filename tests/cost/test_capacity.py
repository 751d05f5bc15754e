"""What many texts take follows from the count and the rate."""

import pytest

from hashee.cost.capacity import Fleet, as_json, as_lines, estimate
from hashee.errors import InputError


def test_hours_and_cost_follow_the_formula() -> None:
    fleet = Fleet(rows=1e9, cores=64, price=0.04)
    fast, dense = estimate(10e6, 20e9, fleet), estimate(60e6, 24e9, fleet)
    assert fast.texts_per_second == pytest.approx(2000 * 64)
    assert fast.hours == pytest.approx(1e9 * 10e6 / (20e9 * 64) / 3600)
    assert fast.cost == pytest.approx(fast.hours * 64 * 0.04)
    # Money depends on the work alone, hours on the cores as well.
    more = estimate(10e6, 20e9, Fleet(1e9, 640, 0.04))
    assert (more.cost, more.hours) == (pytest.approx(fast.cost), pytest.approx(fast.hours / 10))
    assert "dense takes 5.00 times" in as_lines(fleet, fast, dense)
    assert as_json(fleet, fast, dense)["dense"]["hours"] == dense.hours


@pytest.mark.parametrize("fleet", [(0, 64, 0.04), (1e9, 0, 0.04), (1e9, 64, -1), (float("inf"), 1, 1)])
def test_what_is_no_fleet_is_refused(fleet: tuple[float, int, float]) -> None:
    with pytest.raises(InputError):
        Fleet(*fleet)
    with pytest.raises(InputError):
        estimate(1e6, 0, Fleet(1, 1, 1))
