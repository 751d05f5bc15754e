"""Fitting models with exits to labelled texts: `hashee.fit` and `hashee fit`."""

from typing import TYPE_CHECKING

from hashee.packages import lazy_names
from hashee.training.settings import FitSettings

if TYPE_CHECKING:
    from hashee.training.entry import FitResult, fit

__all__ = ["FitResult", "FitSettings", "fit"]

__getattr__, __dir__ = lazy_names(__name__, dict.fromkeys(("FitResult", "fit"), "hashee.training.entry"))
