"""The source of each split of a task, found in a folder, a file, in memory or on the Hub."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from hashee.data.registry import TASKS, Layout, plain_name
from hashee.data.row_files import ENDINGS
from hashee.data.sources import DatasetSource, FileSource, Source, is_dataset
from hashee.data.texts import PathLike
from hashee.errors import InputError
from hashee.packages import require

Data: TypeAlias = PathLike | Any
"""A file, a folder, a Hub id (`owner/name` or `owner/name:configuration`), a `Dataset` or a `DatasetDict`."""

# ELUE's test_full has the labels that its test lacks.
_NAMES = {"train": ("train",), "dev": ("dev", "validation", "valid", "val"), "test": ("test_full", "test")}
_ENDINGS = (*ENDINGS[1:], ".txt")
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(:[\w.-]+)?", re.ASCII)


@dataclass(frozen=True)
class Sources:
    """The splits that were found."""

    train: Source
    dev: Source | None = None
    test: Source | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        seen: dict[object, str] = {}
        for split in ("train", "dev", "test"):
            source: Source | None = getattr(self, split)
            if source is None:
                continue
            if source.identity in seen:
                other = seen[source.identity]
                raise InputError(f"{source.name} is both {other} and {split}; give each split data of its own")
            seen[source.identity] = split


def find_sources(data: Data, layout: Layout | None, dev: Data = None, test: Data = None) -> Sources:
    """Find the splits in `data`; `dev` and `test`, a file or `Dataset` each, replace the ones found there."""
    found = _find(data, layout)
    if dev is not None:
        found = replace(found, dev=_single(dev, "dev", layout))
    if test is not None:
        found = replace(found, test=_single(test, "test", layout))
    return found


def benchmark_folder(task: str, layout: Layout) -> Path:
    """Return the folder of datasets that the environment names, once it is known to have the task."""
    root = os.environ.get("HASHEE_DATA")
    if not root:
        raise InputError(
            f"the examples of {task} are looked up in the folder that the environment variable HASHEE_DATA names, "
            f"which is not set; set it to a folder that has {layout.folder}/train.jsonl.gz, or pass data=..., "
            f"a folder or a Hub id"
        )
    if not Path(root).is_dir() or _subfolder(Path(root), layout.folder) is None:
        raise InputError(f"HASHEE_DATA is {root!r}, which has no folder {layout.folder}; put {task} there")
    return Path(root)


def _find(data: Data, layout: Layout | None) -> Sources:
    if isinstance(data, Mapping):
        return _from_mapping(data, "the dataset dictionary")
    if is_dataset(data):
        return Sources(DatasetSource("the dataset", data))
    if not isinstance(data, str | os.PathLike):
        raise InputError(f"data of type {type(data).__name__} cannot be read; pass a path, a Dataset or a DatasetDict")
    path = Path(data)
    if path.is_dir():
        return _from_folder(path, layout)
    if path.is_file():
        return Sources(_file(path, layout))
    if _HUB_ID.fullmatch(str(data)) and not str(data).removesuffix(".gz").endswith(ENDINGS):
        return _from_hub(str(data))
    raise InputError(f"{data} is neither a file nor a folder nor a task; the tasks are: {', '.join(TASKS)}")


def _single(data: Data, split: str, layout: Layout | None) -> Source:
    if is_dataset(data):
        return DatasetSource(f"the dataset for {split}", data)
    if isinstance(data, str | os.PathLike):
        if not Path(data).is_file():
            raise InputError(f"{split}={str(data)!r} is not a file; {split} is one file or one Dataset")
        return _file(Path(data), layout)
    raise InputError(f"{split} is of type {type(data).__name__}; pass a path or a Dataset")


# --- folders -----------------------------------------------------------------------------------------------


def _from_folder(folder: Path, layout: Layout | None) -> Sources:
    """Look for split files in the folder, or in the sub-folders that a benchmark task has in a folder of datasets."""
    own = None if layout is None else _subfolder(folder, layout.folder)
    files = _split_files(own or folder, layout)
    notes = []
    if "train" not in files and layout is not None and layout.train_split in files:
        files["train"] = files.pop(layout.train_split)
        notes.append(f"there is no train split: {layout.train_split} is trained on instead")
    if "train" not in files:
        return _from_hub(str(own or folder))
    if own is not None and layout is not None and layout.evaluation_folder is not None:
        other = _subfolder(folder, layout.evaluation_folder)
        found = {} if other is None else _split_files(other, layout)
        evaluation = {split: path for split, path in found.items() if split != "train"}
        files |= evaluation
        if evaluation:
            notes.append(f"taken from {layout.evaluation_folder}: {', '.join(evaluation)}")
    sources = {split: _file(path, layout) for split, path in files.items()}
    return Sources(sources["train"], sources.get("dev"), sources.get("test"), tuple(notes))


def _split_files(folder: Path, layout: Layout | None) -> dict[str, Path]:
    """Return the file of each split, recognised by its name; two files for one split are refused."""
    by_stem: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        stem, ending = _stem_and_ending(path)
        if path.is_file() and (ending in ENDINGS[1:] or (ending == ".txt" and layout is not None)):
            by_stem.setdefault(stem.lower(), []).append(path)
    found = {}
    for split, names in _NAMES.items():
        for prefix in ("", *(layout.prefixes if layout is not None else ())):
            claims = [(name, path) for name in names for path in by_stem.get(prefix + name, ())]
            if split == "test":
                claims = [claim for claim in claims if claim[0] == claims[0][0]]
            if prefix:
                # The makers of SNLI publish each split in two formats.
                claims = sorted(claims, key=lambda claim: _ENDINGS.index(_stem_and_ending(claim[1])[1]))[:1]
            if len(claims) > 1:
                files = ", ".join(path.name for _, path in claims)
                raise InputError(f"{folder} has several files for {split}: {files}; leave only one of them")
            if claims:
                found[split] = claims[0][1]
                break
    return found


def _file(path: Path, layout: Layout | None) -> FileSource:
    source = FileSource(path, published=layout is not None)
    if layout is not None and layout.header and source.ending == ".tsv":
        first = source.columns()
        if len(first) == len(layout.header) and "label" not in first:
            return replace(source, header=layout.header)
    return source


def _subfolder(folder: Path, name: str) -> Path | None:
    children = (child for child in sorted(folder.iterdir()) if child.is_dir())
    return next((child for child in children if plain_name(child.name) == plain_name(name)), None)


def _stem_and_ending(path: Path) -> tuple[str, str]:
    bare = path.with_suffix("") if path.suffix.lower() == ".gz" else path
    return bare.stem, bare.suffix.lower()


# --- the datasets package ----------------------------------------------------------------------------------


def _from_hub(name: str) -> Sources:
    """Let the `datasets` package load a Hub id, or a folder that is laid out like one."""
    datasets = require("datasets", "train", f"loading {name}")
    identity, _, configuration = (name, "", "") if Path(name).is_dir() else name.partition(":")
    try:
        loaded = datasets.load_dataset(identity, configuration or None)
    except Exception as error:  # whatever the Hub, the network or the files bring about
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        if Path(name).is_dir():
            raise InputError(
                f"{name} has no file train.jsonl, .csv, .tsv or .parquet, "
                f"and the datasets package cannot load it either ({reason})"
            ) from error
        raise InputError(
            f"{name} is no task ({', '.join(TASKS)}), no file and no folder, "
            f"and the Hub did not give it as a dataset ({reason})"
        ) from error
    return _from_mapping(loaded, name)


def _from_mapping(splits: Mapping[str, Any], name: str) -> Sources:
    found: dict[str, Source] = {}
    for split, names in _NAMES.items():
        present = [key for key in names if key in splits]
        if split == "dev" and len(present) > 1:
            raise InputError(f"{name} has several splits for dev: {', '.join(present)}; leave only one of them")
        if present:
            dataset = splits[present[0]]
            if not is_dataset(dataset):
                raise InputError(f"split {present[0]!r} of {name} is a {type(dataset).__name__}; it must be a Dataset")
            found[split] = DatasetSource(f"{name} [{present[0]}]", dataset)
    if "train" not in found:
        raise InputError(f"{name} has no split 'train'; its splits are: {', '.join(map(str, splits))}")
    return Sources(found["train"], found.get("dev"), found.get("test"))
