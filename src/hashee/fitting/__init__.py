"""Fitting models with exits to labelled texts: `hashee.fit` and `hashee fit`."""

from hashee.fitting.entry import FitResult, fit
from hashee.fitting.settings import FitSettings

__all__ = ["FitResult", "FitSettings", "fit"]
