"""Writing files so that a crash leaves the old file or the new one, never half of one; checksums of files."""

import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import xxhash

from hashee.errors import HasheeError

_CHUNK = 1 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# safetensors, tokenizers and torch.save hide the number of the error in their message.
_SIGNS = ("No space left", "Disk quota exceeded", "File too large", "PytorchStreamWriter", "file write failed")


@contextmanager
def replaced_atomically(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it over `path` only if the body succeeds."""
    with replaced_together([path]) as (temporary,):
        yield temporary


@contextmanager
def replaced_together(paths: list[Path]) -> Iterator[list[Path]]:
    """Yield a temporary path beside each of some paths; rename them in this order only if the body succeeds.

    Nothing is renamed before everything is on the disk, so a full disk leaves all the old files.
    """
    with ExitStack() as stack:
        temporaries = [stack.enter_context(_temporary(path)) for path in paths]
        yield temporaries
        umask = os.umask(0)
        os.umask(umask)
        for temporary in temporaries:
            # mkstemp makes private files; a result should be as readable as any other new file.
            temporary.chmod(0o666 & ~umask)
            sync(temporary)
        for temporary, path in zip(temporaries, paths, strict=True):
            temporary.replace(path)
        for folder in {path.parent for path in paths}:
            sync(folder)


@contextmanager
def _temporary(path: Path) -> Iterator[Path]:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    try:
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    if path.is_dir() and os.name == "nt":
        return  # Windows opens no folders
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError:
        # Some file systems (network, FUSE) have no fsync for folders; their renames are as safe as they get.
        if not path.is_dir():
            raise
    finally:
        os.close(handle)


@contextmanager
def full_disk_told(folder: Path) -> Iterator[None]:
    """Turn the many ways in which a full disk shows itself into one line."""
    try:
        yield
    except HasheeError:
        raise
    except Exception as error:
        if not is_full_disk(error):
            raise
        raise HasheeError(
            f"no space to write to {folder} ({free_megabytes(folder):,.0f} MB free); make room and try again; "
            f"what was there before is unchanged"
        ) from error


def is_full_disk(error: BaseException) -> bool:
    """Tell whether an error, of whatever library, means that a disk or a quota is full."""
    return getattr(error, "errno", None) in _FULL or any(sign in str(error) for sign in _SIGNS)


def free_megabytes(folder: Path) -> float:
    """Return the free space of the disk that a folder, which need not exist, is on."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free / 1e6


def checksum_of_file(path: Path) -> str:
    """Return the XXH3 (128 bits) of a file's bytes as hex digits, reading it piece by piece."""
    digest, buffer = xxhash.xxh3_128(), bytearray(_CHUNK)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(memoryview(buffer)[:count])
    return digest.hexdigest()


def checksum_of_json(value: Any) -> str:
    """Return the XXH3 (128 bits) of JSON values as hex digits, whatever the order of keys and the white space."""
    return xxhash.xxh3_128_hexdigest(json.dumps(value, sort_keys=True, separators=(",", ":")).encode())


def sha256_of_file(path: Path) -> str:
    """Return the hex digest of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
