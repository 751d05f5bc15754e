"""Imports that wait until they are needed: names of our own, and packages that only some users have."""

import importlib
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from hashee.errors import HasheeError

# Two threads that import transformers for the first time break it: it puts another module in its own place.
_one_at_a_time = threading.RLock()


def require(package: str, extra: str, purpose: str) -> Any:
    """Import an optional package, or say what it is needed for and which extra of hashee brings it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        name = package.partition(".")[0].replace("sklearn", "scikit-learn")
        raise HasheeError(f'{purpose} needs the package {name} ({error}): pip install "hashee[{extra}]"') from error


def lazy_names(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package. modules: where each of its names comes from."""

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with _one_at_a_time:
            value = getattr(importlib.import_module(modules[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules})

    return get, names
