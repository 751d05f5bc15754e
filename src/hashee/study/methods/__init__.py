"""Every method of the study, one file each; importing this registers them all."""

from importlib import import_module
from pkgutil import iter_modules

from hashee.training.method import METHODS

for module in iter_modules(__path__):
    import_module(f"{__name__}.{module.name}")

__all__ = ["METHODS"]
