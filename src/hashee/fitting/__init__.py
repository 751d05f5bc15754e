"""Fitting models with exits to labelled texts: `hashee.fit` and `hashee fit`."""

from typing import TYPE_CHECKING

from hashee.fitting.settings import FitSettings
from hashee.lazy import lazy_names

if TYPE_CHECKING:
    from hashee.fitting.entry import FitResult, fit

__all__ = ["FitResult", "FitSettings", "fit"]

__getattr__, __dir__ = lazy_names(__name__, dict.fromkeys(("FitResult", "fit"), "hashee.fitting.entry"))
