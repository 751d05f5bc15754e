"""What a bug report needs to know of the kernels: which are in use, why, and where they lie."""

from typing import Any

from hashee.engine import native
from hashee.engine.int8 import has_torch_kernels
from hashee.engine.native import int8
from hashee.engine.native.store import cache_folder
from hashee.engine.native.variants import VARIANTS
from hashee.errors import HasheeError


def describe_kernels() -> dict[str, Any]:
    """Return the kernels of this process as JSON values, opening (and if needed compiling) them first."""
    found = native.kernels()
    opened = found.opened
    return {
        "in_use": found.variant,
        "why": found.reason,
        "file": None if opened is None or opened.path is None else str(opened.path),
        "folder": _folder(),
        "compiled_now": opened is not None and opened.is_new,
        "int8": _int8(),
        "could_run": [variant.name for variant in VARIANTS if variant.missing() is None],
        "cannot_run": {variant.name: reason for variant in VARIANTS if (reason := variant.missing()) is not None},
        "notes": list(found.notes),
    }


def _int8() -> str:
    if int8.available():
        return f"our kernels, rows in {int8.steps() + 1} steps"
    return "torch's kernels, rows in 128 steps" if has_torch_kernels() else "no kernels: as slow as float32"


def _folder() -> str:
    try:
        return str(cache_folder())
    except HasheeError as error:
        return f"none: {error}"
