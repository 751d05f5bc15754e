"""The user's cache folder for compiled kernels: its files are executed, so other users must not write to it.

A library's name ends in the digest of its bytes, so that a truncated or changed file is detected before it is loaded.
"""

import hashlib
import logging
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hashee.errors import HasheeError

log = logging.getLogger(__name__)

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class Store:
    """An open private folder. All paths are relative to it, so another user cannot replace the folder."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def libraries(self, key: str) -> Iterator[bytes]:
        """Yield the intact libraries that were kept for a source, and remove damaged ones."""
        for name in sorted(os.listdir(self.descriptor)):  # noqa: PTH208  # an open folder, not a path
            if name.startswith(f"kernels-{key}-"):
                compiled = self._read(name)
                if compiled is not None and name == _name(key, compiled):
                    yield compiled
                else:
                    log.info("removed the damaged kernels %s; they are compiled again", name)
                    self.remove(name)

    def _read(self, name: str) -> bytes | None:
        """Return the bytes of a regular file that only this user owns and may write to."""
        try:
            # Without O_NONBLOCK a named pipe would wait for its writer.
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=self.descriptor)
        except OSError:
            return None
        with os.fdopen(descriptor, "rb") as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & OTHERS_WRITE:
                return None
            return file.read()

    def keep(self, key: str, compiled: bytes) -> None:
        """Write a library; other processes see all of it or nothing."""
        unfinished = f".unfinished-{secrets.token_hex(8)}"
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            with os.fdopen(os.open(unfinished, flags, 0o600, dir_fd=self.descriptor), "wb") as file:
                file.write(compiled)
            os.rename(unfinished, _name(key, compiled), src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)
        finally:
            self.remove(unfinished)

    def discard(self, key: str, compiled: bytes) -> None:
        """Remove a library that cannot be used."""
        self.remove(_name(key, compiled))

    def remove(self, name: str) -> None:
        """Remove a file if it is there and can be."""
        with suppress(OSError):
            os.unlink(name, dir_fd=self.descriptor)


def _name(key: str, compiled: bytes) -> str:
    return f"kernels-{key}-{hashlib.sha256(compiled).hexdigest()}.so"


def kept_path(key: str, compiled: bytes) -> Path:
    """Return where a library is kept."""
    return cache_folder() / _name(key, compiled)


def cache_folder() -> Path:
    """Return where kernels are kept."""
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if given.is_absolute():
        return given / "hashee"
    try:
        return Path.home() / ".cache" / "hashee"
    except RuntimeError as error:
        raise HasheeError("this user has no home folder; set XDG_CACHE_HOME") from error


@contextmanager
def opened_store() -> Iterator[Store]:
    """Open the cache folder, creating it if needed; raise HasheeError or OSError if it cannot be private."""
    folder = cache_folder()
    folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    if folder.is_symlink():
        raise HasheeError(f"{folder} is a symbolic link, which others may redirect; set XDG_CACHE_HOME to its target")
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        _make_private(descriptor, folder)
        yield Store(descriptor)
    finally:
        os.close(descriptor)


def _make_private(descriptor: int, folder: Path) -> None:
    """Take other users' access to an open folder away, and remove kernels that they could have written."""
    about = os.fstat(descriptor)
    if about.st_uid != os.getuid():
        raise HasheeError(f"{folder} belongs to user {about.st_uid}, not to {os.getuid()}; set XDG_CACHE_HOME")
    if stat.S_IMODE(about.st_mode) & ~stat.S_IRWXU:
        os.fchmod(descriptor, stat.S_IRWXU)
    if about.st_mode & OTHERS_WRITE:
        log.warning("others could write to %s: it is private now, and kernels are compiled again", folder)
        for name in os.listdir(descriptor):
            if name.startswith("kernels-"):
                os.unlink(name, dir_fd=descriptor)
