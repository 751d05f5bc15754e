"""Packages that only some users need: imported when they are, with the command that brings them."""

import importlib
from typing import Any

from hashee.errors import HasheeError


def require(package: str, extra: str) -> Any:
    """Import an optional package, or say how to install it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise HasheeError(f'this needs the package {package} ({error}): pip install "hashee[{extra}]"') from error
