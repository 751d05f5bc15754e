"""Files that are on the disk before anybody is told that they are there, and what they must still hold later."""

from collections.abc import Mapping
from pathlib import Path

from hashee.files import sha256_of_file, sync


def sync_folder(folder: Path) -> None:
    """Wait until a folder with all that is below it would survive a power cut."""
    for path in sorted(folder.rglob("*")):
        sync(path)
    sync(folder)


def digests_of(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file below a folder, by its path from there."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): sha256_of_file(path) for path in files}


def fault_in(folder: Path, digests: Mapping[str, str]) -> str | None:
    """Say which file of a folder is missing or no longer what it was, or None if all are as they were."""
    for name, digest in digests.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if sha256_of_file(path) != digest:
            return f"{name} is damaged or has been changed"
    return None
