"""Files written whole or not at all: a crash leaves the old file, JSON or model or the new one; checksums of them."""

import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import xxhash

from hashee.errors import HasheeError

_CHUNK = 1 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# safetensors, tokenizers and torch.save hide the number of the error in their message.
_SIGNS = ("No space left", "Disk quota exceeded", "File too large", "PytorchStreamWriter", "file write failed")
_TRY_AGAIN = "make room and try again; what was there before is unchanged"

CONFIG = "config.json"
"""Without it nothing opens a model's folder."""
INCOMING = ".incoming"
"""Sub-folder of a model's folder in which the files of the model that replaces it are written."""
_MODEL_FILES = (
    "model*.safetensors",
    "model.safetensors.index.json",
    "generation_config.json",
    "tokenizer*.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.*",
    "merges.txt",
    "bpe.codes",
    "dict.txt",
    "*.model",
)
"""What `save_pretrained` of models and tokenizers writes; an old model's must not be read as part of the new one."""


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
def replaced_model(folder: Path, record: str) -> Iterator[Path]:
    """Yield an empty folder for a model's files, which replace those in `folder` if the body succeeds.

    Other files and folders there stay. Whoever opens `folder` finds the old model, the new one or none: `config.json`
    is removed first and comes last, but for the file called `record`, which says that all other files are there.
    """
    incoming = folder / INCOMING
    shutil.rmtree(incoming, ignore_errors=True)
    incoming.mkdir(parents=True)
    try:
        yield incoming
        sync_folder(incoming)
        _swap(incoming, folder, record)
    finally:
        shutil.rmtree(incoming, ignore_errors=True)


def _swap(incoming: Path, folder: Path, record: str) -> None:
    names = {path.name for path in incoming.iterdir()}
    last = [name for name in (CONFIG, record) if name in names]
    for name in (record, CONFIG):
        (folder / name).unlink(missing_ok=True)
    # Without this, a power cut could undo the removal and keep what follows.
    sync(folder)
    for pattern in _MODEL_FILES:
        for path in folder.glob(pattern):
            path.unlink()
    for name in sorted(names.difference(last)):
        # A folder, such as sentence-transformers' pooling, cannot replace one that holds files.
        if (folder / name).is_dir():
            shutil.rmtree(folder / name)
        (incoming / name).replace(folder / name)
    for name in last:
        sync(folder)
        (incoming / name).replace(folder / name)
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


def sync_folder(folder: Path) -> None:
    """Wait until a folder and everything below it are on the disk."""
    for path in sorted(folder.rglob("*")):
        sync(path)
    sync(folder)


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


@contextmanager
def full_disk_told(folder: Path, advice: str = _TRY_AGAIN) -> Iterator[None]:
    """Turn the many ways in which a full disk shows itself into one line, with advice."""
    try:
        yield
    except HasheeError:
        raise
    except Exception as error:
        if not is_full_disk(error):
            raise
        free = free_megabytes(folder)
        raise HasheeError(f"no space to write to {folder} ({free:,.0f} MB free); {advice}") from error


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


def sha256_of_json(values: Mapping[str, Any]) -> str:
    """Return the hex digest of JSON values, whatever the order of keys."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def digests_of(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file below a folder, by its path from there."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): sha256_of_file(path) for path in files}


def fault_in(folder: Path, digests: Mapping[str, str]) -> str | None:
    """Say which file of a folder is missing or differs from its digest, or None if all are as they were."""
    for name, digest in digests.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if sha256_of_file(path) != digest:
            return f"{name} is damaged or has been changed"
    return None
