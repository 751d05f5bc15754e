"""A folder entry made of two files, `<name>.safetensors` and `<name>.json`, tied together by checksums."""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from hashee.errors import TableError, first_line, shortened
from hashee.files import checksum_of_json, full_disk_told, replaced_together, sha256_of_file

_CHECKSUM = "safetensors_sha256"
_OWN_CHECKSUM = "metadata_xxh3_128"


@dataclass(frozen=True)
class Storage:
    """Saves and loads arrays with metadata: `name` of the files, `what` they hold, `version` of the format."""

    name: str
    what: str
    version: int

    def save(self, folder: Path, arrays: dict[str, np.ndarray[Any, Any]], metadata: dict[str, Any]) -> None:
        """Write both files; the JSON comes last and carries the checksums of the arrays and of itself."""
        tensors, document = self._paths(folder)
        with full_disk_told(folder), replaced_together([tensors, document]) as (arrays_file, metadata_file):
            save_file(arrays, arrays_file)
            content = {"format_version": self.version, **metadata, _CHECKSUM: sha256_of_file(arrays_file)}
            content[_OWN_CHECKSUM] = checksum_of_json(content)
            metadata_file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    def load(self, folder: Path) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, Any]]:
        """Read both files and refuse what is missing, damaged, mixed up or from a later version."""
        tensors, document = self._paths(folder)
        for path in (document, tensors):
            if not path.is_file():
                raise TableError(f"no {self.what} in {folder}: {path.name} is missing; save it there first")
        metadata = self._read_json(document)
        self.check_version(metadata, str(document))
        own_checksum = metadata.pop(_OWN_CHECKSUM, None)
        if own_checksum is not None and own_checksum != checksum_of_json(metadata):
            raise TableError(
                f"{document} is not as it was saved (its checksum differs): copy it again or rebuild the {self.what}; "
                f'if you changed it on purpose, delete its "{_OWN_CHECKSUM}"'
            )
        if metadata.get(_CHECKSUM) != sha256_of_file(tensors):
            raise TableError(
                f"{tensors} is damaged or does not belong to {document.name} (its checksum differs); "
                f"copy both files again or rebuild the {self.what}"
            )
        try:
            return load_file(tensors), metadata
        except (SafetensorError, OSError, ValueError, struct.error) as error:
            raise TableError(f"{tensors} cannot be read ({first_line(error)}); rebuild the {self.what}") from None

    def check_version(self, metadata: Mapping[str, Any], source: str) -> None:
        """Refuse metadata of a later format, or without a usable version."""
        version = metadata.get("format_version")
        if not isinstance(version, int) or isinstance(version, bool) or version < 1:
            raise TableError(
                f"{source} is damaged: format_version is {shortened(repr(version))}; rebuild the {self.what}"
            )
        if version > self.version:
            raise TableError(
                f"{source} has format version {shortened(version)}, but this hashee reads up to {self.version}; "
                f"upgrade with pip install --upgrade hashee"
            )

    def _paths(self, folder: Path) -> tuple[Path, Path]:
        return folder / f"{self.name}.safetensors", folder / f"{self.name}.json"

    def _read_json(self, path: Path) -> dict[str, Any]:
        try:
            metadata = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, OSError, RecursionError) as error:
            raise TableError(f"{path} is damaged ({first_line(error)}); rebuild the {self.what}") from None
        if not isinstance(metadata, dict):
            raise TableError(f"{path} is damaged (not a JSON object); rebuild the {self.what}")
        return metadata
