"""A few lines of code beside a saved model, for scripts that open it without importing hashee.

transformers knows nothing of converted models until hashee is imported, and would advise to upgrade transformers. With
the opener in the folder it says that the model brings code, runs that with `trust_remote_code=True`, and names hashee
where it is not installed. Scripts that import hashee never run it.
"""

from pathlib import Path
from typing import Any

OPENER = "open_with_hashee"

_CODE = '''"""Opens this model with transformers in scripts that do not import hashee themselves: pip install hashee"""

from hashee.hf.classes import {config_class}

__all__ = ["{config_class}"]
'''


def name_opener(config: Any) -> None:
    """Name the opener in a config that is about to be saved, if its class can be imported from hashee."""
    if type(config).__module__ == "hashee.hf.classes":
        config.auto_map = {"AutoConfig": f"{OPENER}.{type(config).__name__}"}


def write_opener(config: Any, folder: Path) -> None:
    """Write the opener that a config names beside it."""
    if type(config).__module__ == "hashee.hf.classes":
        code = _CODE.format(config_class=type(config).__name__)
        (folder / f"{OPENER}.py").write_text(code, encoding="utf-8")
