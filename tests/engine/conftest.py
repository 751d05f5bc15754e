"""What tests of the engine share."""

from collections.abc import Iterator

import pytest

from hashee.engine import native
from hashee.engine.native import variants
from which_kernels import ABLE


@pytest.fixture(params=ABLE)
def variant(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A variant that all kernels of the test are from."""
    monkeypatch.setenv(variants.SWITCH, request.param)
    native.kernels.cache_clear()
    yield request.param
    native.kernels.cache_clear()
