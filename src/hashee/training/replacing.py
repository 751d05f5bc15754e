"""Replacing the model in a folder: whoever opens it finds the old one, the new one, or none; never a mixture."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hashee.files import sync
from hashee.training.durable import sync_folder

CONFIG = "config.json"
INCOMING = ".incoming"
"""Folder, in that of a model, for the files that are to take the place of those there."""
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
def replaced_model(folder: Path, record: str) -> Iterator[Path]:
    """Yield an empty folder for a model's files, which replace those in `folder` if the body succeeds.

    Other files and folders there stay. `config.json`, without which nothing opens a folder, goes first and comes
    last but for the file called `record`, which says that all else is there.
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
        (incoming / name).replace(folder / name)
    for name in last:
        sync(folder)
        (incoming / name).replace(folder / name)
    sync(folder)
