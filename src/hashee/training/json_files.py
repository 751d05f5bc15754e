"""Small JSON files that say what was done, with which settings, on what."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hashee.files import replaced_atomically


def fingerprint_of(values: Mapping[str, Any]) -> str:
    """Return the SHA-256 of JSON values."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the values in a JSON file, or None if it is missing or damaged."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return values if isinstance(values, dict) else None


def write_json(path: Path, values: Any) -> None:
    """Write JSON so that a crash leaves the old file or the new one."""
    with replaced_atomically(path) as temporary:
        temporary.write_text(json_text(values), encoding="utf-8")


def json_text(values: Any) -> str:
    """Return values as the text of a JSON file."""
    return json.dumps(values, indent=1) + "\n"
