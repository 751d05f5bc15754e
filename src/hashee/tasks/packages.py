"""Packages that only some users need: imported when they are, with the command that brings them."""

import importlib
from typing import Any

from hashee.errors import HasheeError


def require(package: str, what: str) -> Any:
    """Import an optional package, or say for what it is needed and how to install it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        name = package.partition(".")[0].replace("sklearn", "scikit-learn")
        raise HasheeError(f'{what} needs the package {name} ({error}): pip install "hashee[train]"') from error
