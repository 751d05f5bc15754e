"""Reading configs, tokenizers and models from folders or the Hub; what goes wrong is one clear line."""

from pathlib import Path
from typing import Any

from hashee.errors import HasheeError, InputError, first_line


def read_pretrained(auto_class: Any, source: str, what: str, **options: Any) -> Any:
    """Return what `auto_class.from_pretrained` returns. what: its name in messages, such as "model"."""
    # A Hub id has at most one slash; anything else must be here, and asking the Hub for it takes long.
    if (source.startswith((".", "/", "~")) or source.count("/") > 1) and not Path(source).exists():
        raise InputError(f"cannot load a {what} from {source}: there is no such file or folder")
    try:
        return auto_class.from_pretrained(source, **options)
    except HasheeError:
        raise
    except Exception as error:
        raise HasheeError(f"cannot load a {what} from {source}: {first_line(error)}") from error
