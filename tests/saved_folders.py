"""What the tests of saved folders share: folders as they were before there were checksums."""

import json
from pathlib import Path
from typing import Any


def edit_config(folder: Path, **changes: Any) -> None:
    """Change fields of a saved config; the checksums stay as they are."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def drop_checksums(folder: Path) -> Path:
    """Make a saved model look as if it were written before there were checksums, and return its folder."""
    settings = json.loads((folder / "config.json").read_text())["hashee"]
    settings.pop("checksums", None)
    edit_config(folder, hashee=settings)
    return folder
