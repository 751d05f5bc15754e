"""Calling `from_pretrained` of transformers so that whatever goes wrong is one clear line; for `hf/opening.py`."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hashee.errors import FATAL, HasheeError, InputError, first_line, shortened
from hashee.hf.integrity import CONFIG, check_config, located, read_config

_SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "vocab_size")
_LARGEST = 10**8
"""Larger than any size of a model; what is counted with it still fits into 64 bits."""


def read_pretrained(auto_class: Any, source: str, what: str, **options: Any) -> Any:
    """Return what `auto_class.from_pretrained` returns. what: its name in messages, such as "model"."""
    # A Hub id has at most one slash; anything else must be here, and asking the Hub for it takes long.
    if (source.startswith((".", "/", "~")) or source.count("/") > 1) and not Path(source).exists():
        raise InputError(f"cannot load a {what} from {source}: there is no such file or folder")
    path = Path(source) if Path(source).is_file() else located(source, CONFIG, options)
    if path is not None:
        check_config(read_config(path), path)
    try:
        loaded = auto_class.from_pretrained(source, **options)
    except HasheeError:
        raise
    except BaseException as error:
        if isinstance(error, FATAL):
            raise
        raise HasheeError(f"cannot load a {what} from {source}: {first_line(error)}") from error
    _check_config_sizes(loaded, source)
    _check_length(loaded, source)
    return loaded


def read_tokenizer(source: str | Path) -> Any:
    """Return the tokenizer of a folder or a Hub id, or say in one line why it cannot be used."""
    from transformers import AutoTokenizer  # noqa: PLC0415  # slow to import

    return read_pretrained(AutoTokenizer, str(source), "tokenizer")


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep transformers' reports and bars from burying ours."""
    from transformers.utils import logging  # noqa: PLC0415  # slow to import

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _check_config_sizes(config: Any, source: str) -> None:
    """Refuse a config whose sizes are no sizes; anything else than a config passes."""
    for name in _SIZES if hasattr(config, "attribute_map") else ():
        value = getattr(config, name, None)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _LARGEST:
            raise HasheeError(f"the config in {source} is damaged: {name} is {shortened(value)}; copy it again")


def _check_length(tokenizer: Any, source: str) -> None:
    """Refuse a tokenizer that cuts texts at a length that is none; anything else than a tokenizer passes."""
    longest = getattr(tokenizer, "model_max_length", 1)
    is_number = isinstance(longest, int | float) and not isinstance(longest, bool)
    # Infinity means no limit; part of a token is none.
    if not is_number or not longest >= 1 or (math.isfinite(longest) and longest != int(longest)):
        shown = shortened(longest)
        raise HasheeError(f"the tokenizer in {source} is damaged: model_max_length is {shown}; copy it again")
    if isinstance(longest, float) and math.isfinite(longest):
        tokenizer.model_max_length = int(longest)
