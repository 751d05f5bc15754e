"""Names of a package that are imported when they are first asked for."""

import importlib
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

# Two threads that import transformers for the first time break it: it puts another module in its own place.
_one_at_a_time = threading.RLock()


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
