"""The folder of an export: written as a whole, described by hashee_onnx.json, checked before it runs."""

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hashee.errors import CheckpointError, HasheeError, shortened
from hashee.files import checksum_of_file, checksum_of_json, full_disk_told, sync
from hashee.hf.integrity import ALGORITHM, ENTRY, EXPORTED, read_json_object
from hashee.tables.tokenization import check_tokenization
from hashee.tables.vocabulary import check_tokenizer

FORMAT = 1
"""Version of the folder's layout, in hashee_onnx.json."""
DESCRIPTION = EXPORTED
GRAPH = "model.onnx"
WEIGHTS = "model.onnx.data"

_AGAIN = "export the model again"
_FIELDS: dict[str, type | tuple[type, ...]] = {
    "inputs": list,
    "outputs": dict,
    "reads_first_row": bool,
    "vocabulary": int,
    "positions": int,
    "padding_id": (int, type(None)),
    "token_types": int,
}


@contextmanager
def prepared(folder: Path) -> Iterator[Path]:
    """Yield a folder beside `folder`; put its files in place only if the body succeeds."""
    if folder.exists() and not folder.is_dir():
        raise HasheeError(f"{folder} is a file; name a folder to export to")
    with full_disk_told(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as temporary:
            draft = Path(temporary) / folder.name
            draft.mkdir()
            yield draft
            for path in (*draft.iterdir(), draft):
                sync(path)
            if folder.exists():
                _move_into(folder, draft)
            else:
                draft.rename(folder)
            sync(folder.parent)


def _move_into(folder: Path, draft: Path) -> None:
    """Replace the files of an earlier export, and remove those that the new one does not have."""
    earlier = _files_of(folder)
    # The description is removed first and written last: a folder without it is refused, so no mixture can be opened.
    (folder / DESCRIPTION).unlink(missing_ok=True)
    sync(folder)
    for name in {WEIGHTS, *earlier} - {path.name for path in draft.iterdir()}:
        (folder / name).unlink(missing_ok=True)
    for path in sorted(draft.iterdir(), key=lambda path: path.name == DESCRIPTION):
        path.replace(folder / path.name)
    sync(folder)


def _files_of(folder: Path) -> set[str]:
    """Return the names of the files that an earlier export put into a folder, if its description can be read."""
    try:
        return set(_checksums(read_json_object(folder / DESCRIPTION, _AGAIN), folder).get("files", {}))
    except CheckpointError:
        return set()


def write_description(draft: Path, description: Mapping[str, Any]) -> None:
    """Write hashee_onnx.json with the checksums of all other files and of itself."""
    files = {path.name: checksum_of_file(path) for path in sorted(draft.iterdir())}
    checksums = {"algorithm": ALGORITHM, "description": checksum_of_json(description), "files": files}
    text = json.dumps({**description, ENTRY: checksums}, indent=2) + "\n"
    (draft / DESCRIPTION).write_text(text, encoding="utf-8")


def read_description(folder: Path) -> dict[str, Any]:
    """Return hashee_onnx.json after checking that the folder is as it was exported.

    Folders that were exported before there were checksums are only checked for what their description must hold.
    """
    path = folder / DESCRIPTION
    if not path.is_file():
        raise CheckpointError(f"{folder} holds no {DESCRIPTION}; write it with hashee.export.export_onnx")
    description = read_json_object(path, _AGAIN)
    if description.get("format") != FORMAT:
        found = shortened(description.get("format"))
        raise CheckpointError(f"{path} has format {found}, but format {FORMAT} is needed; {_AGAIN}")
    checksums = _checksums(description, folder)
    described = {name: value for name, value in description.items() if name != ENTRY}
    if "description" in checksums and checksums["description"] != checksum_of_json(described):
        raise CheckpointError(
            f"{path} is not as it was exported (its checksum differs): copy it again or {_AGAIN}; if you changed it on "
            f'purpose, delete "description" from its "{ENTRY}"'
        )
    for name, expected in _FIELDS.items():
        if not isinstance(description.get(name), expected):
            raise CheckpointError(f"{path} is damaged: {name} is {shortened(description.get(name))}; {_AGAIN}")
    _check_files(folder, checksums.get("files", {}))
    return description


def _checksums(description: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    checksums = description.get(ENTRY, {"algorithm": ALGORITHM})
    files = checksums.get("files", {}) if isinstance(checksums, dict) else None
    if not isinstance(files, dict) or any("/" in name for name in files) or checksums.get("algorithm") != ALGORITHM:
        raise CheckpointError(f"{folder / DESCRIPTION} is damaged: its {ENTRY} cannot be read; {_AGAIN}")
    return dict(checksums)


def _check_files(folder: Path, files: Mapping[str, Any]) -> None:
    for name, checksum in files.items():
        path = folder / name
        if not path.is_file():
            raise CheckpointError(f"{folder} lacks {name}, which was exported with it; copy it again or {_AGAIN}")
        if checksum_of_file(path) != checksum:
            raise CheckpointError(
                f"{path} is damaged or does not belong to {DESCRIPTION} (its checksum differs); copy the folder again "
                f'or {_AGAIN}; if you changed it on purpose, delete its entry in "files" of "{ENTRY}"'
            )


def check_exported_tokenizer(tokenizer: Any, description: Mapping[str, Any]) -> None:
    """Raise TableMismatch unless a tokenizer is the one that the exported model reads."""
    fingerprint = description.get("tokenizer_fingerprint")
    check_tokenizer(tokenizer, description["vocabulary"], fingerprint, description.get("num_layers", 0))
    check_tokenization(tokenizer, description.get("tokenization"), DESCRIPTION)
