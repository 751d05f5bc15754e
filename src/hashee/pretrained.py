"""Reading configs, tokenizers and models from folders or the Hub; what goes wrong is one clear line."""

from pathlib import Path
from typing import Any

from hashee.errors import HasheeError, InputError, first_line, shortened
from hashee.integrity import CONFIG, check_config, located, read_config

_FATAL = (KeyboardInterrupt, SystemExit, GeneratorExit)
_SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "vocab_size")


def read_pretrained(auto_class: Any, source: str, what: str, **options: Any) -> Any:
    """Return what `auto_class.from_pretrained` returns. what: its name in messages, such as "model"."""
    # A Hub id has at most one slash; anything else must be here, and asking the Hub for it takes long.
    if (source.startswith((".", "/", "~")) or source.count("/") > 1) and not Path(source).exists():
        raise InputError(f"cannot load a {what} from {source}: there is no such file or folder")
    path = Path(source) if source.endswith(".json") else located(source, CONFIG, options)
    if path is not None:
        check_config(read_config(path), path)
    try:
        loaded = auto_class.from_pretrained(source, **options)
    except HasheeError:
        raise
    except BaseException as error:
        # The tokenizers library panics over some damaged files, which is no Exception.
        if isinstance(error, _FATAL):
            raise
        raise HasheeError(f"cannot load a {what} from {source}: {first_line(error)}") from error
    _check_sizes(loaded, source)
    return loaded


def read_tokenizer(source: str | Path) -> Any:
    """Return the tokenizer of a folder or a Hub id, or say in one line why it cannot be used."""
    from transformers import AutoTokenizer  # noqa: PLC0415  # slow to import

    tokenizer = read_pretrained(AutoTokenizer, str(source), "tokenizer")
    longest = tokenizer.model_max_length
    if isinstance(longest, bool) or not isinstance(longest, int | float) or not longest >= 1:
        raise HasheeError(
            f"the tokenizer in {source} is damaged: model_max_length is {shortened(longest)}; copy it again"
        )
    return tokenizer


def _check_sizes(config: Any, source: str) -> None:
    """Refuse a config whose sizes are no sizes; anything else than a config passes."""
    for name in _SIZES if hasattr(config, "attribute_map") else ():
        value = getattr(config, name, None)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise HasheeError(f"the config in {source} is damaged: {name} is {shortened(value)}; copy it again")
