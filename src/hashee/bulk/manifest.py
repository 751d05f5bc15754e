"""What a folder of parts was begun with; a run goes on with the same model, input and options, or not at all."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import xxhash

from hashee.bulk.inputs import InputFile, as_json
from hashee.bulk.reading import ShardEnd
from hashee.bulk.settings import BulkJob
from hashee.embedded import minilm_folder
from hashee.errors import InputError
from hashee.files import checksum_of_file, read_json, write_json
from hashee.hf.text_models import EMBEDDED

MANIFEST = "manifest.json"
_VERSION = 1
_WEIGHTS = (".safetensors", ".bin", ".onnx", ".data", ".xml", ".model")
_NAMES = (
    *("config.json", "hashee_onnx.json", "modules.json", "config_sentence_transformers.json"),
    *("sentence_bert_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("added_tokens.json", "vocab.txt", "vocab.json", "merges.txt", "exit_table.json"),
)
"""Beside the weights, what the outputs of a model depend on; reports and records of a fit are left out."""


def manifest_of(job: BulkJob, files: Sequence[InputFile]) -> dict[str, Any]:
    """Return what a job's output depends on, as JSON values, without times: the same job gives the same bytes."""
    about = {"folder": Path(job.model.folder).name, "digest": digest_of_model(job.model.folder)}
    return {
        "version": _VERSION,
        "model": about,
        "input": as_json(files),
        "options": job.options(),
        "complete": False,
    }


def completed(manifest: dict[str, Any], ends: Sequence[ShardEnd]) -> dict[str, Any]:
    """Return the manifest of a job whose parts are all there."""
    return manifest | {
        "complete": True,
        "rows": sum(end.rows for end in ends),
        "rejected": sum(end.rejected for end in ends),
        "parts": [end.parts for end in ends],
    }


def digest_of_model(folder: str) -> str:
    """Return the XXH3 (128 bits) of the files that a model's outputs depend on."""
    place = minilm_folder() if folder == EMBEDDED else Path(folder)
    if not place.is_dir():
        raise InputError(f"{folder} is no folder; name that of a model")
    digest = xxhash.xxh3_128()
    for path in sorted(place.rglob("*")):
        name = path.relative_to(place)
        hidden = any(part.startswith(".") for part in name.parts)
        if path.is_file() and not hidden and (path.suffix in _WEIGHTS or path.name in _NAMES):
            digest.update(f"{name.as_posix()} {checksum_of_file(path)}\n".encode())
    return digest.hexdigest()


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Return the manifest in a folder, if it has one."""
    path = folder / MANIFEST
    found = read_json(path)
    if found is None and path.exists():
        raise InputError(f"{path} is damaged; delete {folder} and start again")
    return found


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Write the manifest of a folder."""
    write_json(folder / MANIFEST, manifest)


def check_same(folder: Path, begun: dict[str, Any], now: dict[str, Any]) -> None:
    """Refuse to go on with another model, input or options than a folder was begun with."""
    remedy = f"repeat the command as it was, or name another folder than {folder}"
    if begun.get("version") != now["version"]:
        raise InputError(f"{folder} was begun by another version of hashee; {remedy}")
    if begun["model"]["digest"] != now["model"]["digest"]:
        raise InputError(f"{folder} was begun with another model ({begun['model']['folder']}); {remedy}")
    if begun["input"] != now["input"]:
        raise InputError(
            f"{folder} was begun with another input ({_difference(begun['input'], now['input'])}); {remedy}"
        )
    for name, value in now["options"].items():
        if begun["options"].get(name) != value:
            raise InputError(
                f"{folder} was begun with another {name} ({begun['options'].get(name)!r}, now {value!r}); {remedy}"
            )


def _difference(begun: list[dict[str, Any]], now: list[dict[str, Any]]) -> str:
    """Say in few words how two lists of files differ."""
    before, after = ({each["name"]: each for each in files} for files in (begun, now))
    for name in [*before, *after]:
        if name not in after:
            return f"{name} is gone"
        if name not in before:
            return f"{name} is new"
        if before[name] != after[name]:
            return f"{name} has changed"
    return "the order has changed"


@contextmanager
def held_alone(folder: Path) -> Iterator[None]:
    """Keep other runs out of a folder until this one ends, however it ends."""
    if os.name == "nt":
        yield  # no locks of folders there
        return
    import fcntl  # noqa: PLC0415  # Windows has none

    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(f"another run is writing to {folder}; wait for it, or name another folder") from None
        yield
    finally:
        os.close(handle)
