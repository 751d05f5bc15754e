"""A folder entry made of two files, `<name>.safetensors` and `<name>.json`, that vouch for each other."""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from hashee.errors import TableError
from hashee.files import replaced_atomically, sha256_of_file

_CHECKSUM = "safetensors_sha256"


@dataclass(frozen=True)
class Storage:
    """Saves and loads arrays with metadata: `name` of the files, `what` they hold, `version` of the format."""

    name: str
    what: str
    version: int

    def save(self, folder: Path, arrays: dict[str, np.ndarray[Any, Any]], metadata: dict[str, Any]) -> None:
        """Write both files, each atomically; the JSON comes last and carries the checksum of the arrays."""
        tensors = folder / f"{self.name}.safetensors"
        with replaced_atomically(tensors) as temporary:
            save_file(arrays, temporary)
        document = {"format_version": self.version, **metadata, _CHECKSUM: sha256_of_file(tensors)}
        with replaced_atomically(folder / f"{self.name}.json") as temporary:
            temporary.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    def load(self, folder: Path) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, Any]]:
        """Read both files and refuse what is missing, damaged, mixed up or from a later version."""
        tensors, document = folder / f"{self.name}.safetensors", folder / f"{self.name}.json"
        for path in (document, tensors):
            if not path.is_file():
                raise TableError(f"no {self.what} in {folder}: {path.name} is missing; save it there first")
        metadata = self._read_json(document)
        self.check_version(metadata, str(document))
        if metadata.get(_CHECKSUM) != sha256_of_file(tensors):
            raise TableError(
                f"{tensors} is damaged or does not belong to {document.name} (its checksum differs); "
                f"copy both files again or rebuild the {self.what}"
            )
        try:
            return load_file(tensors), metadata
        except (SafetensorError, OSError, ValueError, struct.error) as error:
            raise TableError(f"{tensors} cannot be read ({error}); rebuild the {self.what}") from None

    def check_version(self, metadata: Mapping[str, Any], place: str) -> None:
        """Refuse metadata of a later format, or without a usable version."""
        version = metadata.get("format_version")
        if not isinstance(version, int) or version < 1:
            raise TableError(f"{place} is damaged: format_version is {version!r}; rebuild the {self.what}")
        if version > self.version:
            raise TableError(
                f"{place} has format version {version}, but this hashee reads up to {self.version}; "
                f"upgrade with pip install --upgrade hashee"
            )

    def _read_json(self, path: Path) -> dict[str, Any]:
        try:
            metadata = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, OSError, RecursionError) as error:
            raise TableError(f"{path} is damaged ({error}); rebuild the {self.what}") from None
        if not isinstance(metadata, dict):
            raise TableError(f"{path} is damaged (not a JSON object); rebuild the {self.what}")
        return metadata
