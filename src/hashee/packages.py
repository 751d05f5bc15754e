"""Packages that only some users need: imported when they are, with the command that brings them."""

import importlib
from typing import Any

from hashee.errors import HasheeError


def require(package: str, extra: str, purpose: str) -> Any:
    """Import an optional package, or say what it is needed for and which extra of hashee brings it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        name = package.partition(".")[0].replace("sklearn", "scikit-learn")
        raise HasheeError(f'{purpose} needs the package {name} ({error}): pip install "hashee[{extra}]"') from error
