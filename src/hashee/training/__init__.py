"""Fitting models with exits to labelled texts: `hashee.fit` and `hashee fit`."""

from typing import TYPE_CHECKING

from hashee.packages import lazy_names

if TYPE_CHECKING:
    from hashee.training.entry import FitResult, fit
    from hashee.training.settings import FitSettings

__all__ = ["FitResult", "FitSettings", "fit"]

# Imported when they are first used: the whole command line imports `stopping` from here.
_MODULES = {
    "FitResult": "hashee.training.entry",
    "FitSettings": "hashee.training.settings",
    "fit": "hashee.training.entry",
}

__getattr__, __dir__ = lazy_names(__name__, _MODULES)
