"""Checksums in the config of a saved model: a damaged, mixed or half-written folder is refused.

The entry `checksums` of `hashee` in config.json holds the checksum of the rest of the config and of every file with
weights. Folders without it, written before there was one or edited on purpose, open unchecked.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import Any

from hashee.errors import CheckpointError, HasheeError, first_line, shortened
from hashee.files import checksum_of_file, checksum_of_json, replaced_atomically, sync
from hashee.hf.opener import write_opener

CONFIG = "config.json"
EXPORTED = "hashee_onnx.json"
"""Describes a folder that `export_onnx` wrote."""
ENTRY = "checksums"
ALGORITHM = "xxh3_128"
MOST_LAYERS = 10_000
"""More layers than any model has; a larger number is damage, and would take for ever to build."""

_REMEDY = "copy it again or save the model again"
_DEPTHS = ("encoder_layers", "n_layers", "num_layers", "num_hidden_layers")
"""Names of the number of layers in a converted model's config, by family."""
_DECODER_DEPTHS = ("decoder_layers", "num_decoder_layers")
_UNFINISHED = {"unfinished": True}
_WEIGHTS, _INDEX, _GENERATION = "model.safetensors", "model.safetensors.index.json", "generation_config.json"
_ADAPTER = "adapter_config.json"
# What says where and by which version a config was written, not what the model computes.
_FREE = ("transformers_version", "_name_or_path", "_commit_hash")
_TO_HUB = ("repo_id", "commit_message", "commit_description", "private", "revision", "create_pr", "tags")
_WHERE = ("cache_dir", "force_download", "proxies", "token", "revision", "local_files_only", "subfolder")


# --- writing -------------------------------------------------------------------------------------------------


def save_with_checksums(model: Any, save: Callable[..., None], folder: Any, *args: Any, **kwargs: Any) -> None:
    """Call a model's `save_pretrained` of transformers, with checksums where it writes a whole model."""
    given = signature(save).bind(folder, *args, **kwargs).arguments
    # Adapters leave the model's own files alone, and checkpoints of several processes are not for opening.
    partly = getattr(model, "_hf_peft_config_loaded", False) or given.get("distributed_checkpoint", False)
    if partly or not given.get("is_main_process", True) or Path(folder).is_file():
        save(folder, *args, **kwargs)
        return
    options = given | given.pop("kwargs", {})
    options.pop("save_directory")
    to_hub = options.pop("push_to_hub", False)
    hub = {name: options.pop(name) for name in _TO_HUB if name in options}
    with saved_with_checksums(model, Path(folder), options.get("variant")):
        save(folder, **options)
        write_opener(model.config, Path(folder))
    if to_hub:
        # It saves once more, and uploads only what is finished.
        hub |= {name: options[name] for name in ("token", "max_shard_size") if name in options}
        model.push_to_hub(hub.pop("repo_id", Path(folder).name), **hub)


@contextmanager
def saved_with_checksums(model: Any, folder: Path, variant: str | None = None) -> Iterator[None]:
    """Let the body save a model, which then records its checksums; until then the folder is refused.

    The old config is taken away first and the new one says "unfinished" until the weights are on the disk, so that a
    kill leaves no mixture of two models that loads.
    """
    weights, index = (folder / _with_variant(name, variant) for name in (_WEIGHTS, _INDEX))
    folder.mkdir(parents=True, exist_ok=True)
    for path in (folder / CONFIG, index):
        path.unlink(missing_ok=True)
    sync(folder)
    settings = model.config.hashee
    settings[ENTRY] = dict(_UNFINISHED)
    try:
        yield
    finally:
        settings.pop(ENTRY, None)
    if index.exists():
        # Left by an earlier save that needed no shards, it would be loaded in their place.
        weights.unlink(missing_ok=True)
    _record(folder, _written(weights, index))


def _written(weights: Path, index: Path) -> list[Path]:
    """Return the files that hold the weights, and what else decides the outputs of a model."""
    folder = weights.parent
    paths = [weights]
    if index.exists():
        shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        paths = [index, *(folder / name for name in sorted(shards))]
    return [path for path in (*paths, folder / _GENERATION) if path.exists()]


def _record(folder: Path, paths: list[Path]) -> None:
    """Write the checksums into config.json, as the last thing of all."""
    for path in paths:
        sync(path)
    document = read_json_object(folder / CONFIG, "save the model again")
    files = {path.name: checksum_of_file(path) for path in paths}
    document["hashee"][ENTRY] = {"algorithm": ALGORITHM, "config": _checksum_of_config(document), "files": files}
    with replaced_atomically(folder / CONFIG) as temporary:
        temporary.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _checksum_of_config(document: Mapping[str, Any]) -> str:
    """Return the checksum of everything in a config that has to do with what the model computes."""
    kept = {name: value for name, value in document.items() if name not in _FREE}
    if isinstance(kept.get("hashee"), dict):
        kept["hashee"] = {name: value for name, value in kept["hashee"].items() if name != ENTRY}
    return checksum_of_json(kept)


def _with_variant(name: str, variant: str | None) -> str:
    stem, _, rest = name.partition(".")
    return name if variant is None else f"{stem}.{variant}.{rest}"


# --- reading -------------------------------------------------------------------------------------------------


@contextmanager
def opened_with_checksums(source: Any, options: Mapping[str, Any]) -> Iterator[None]:
    """Check a saved model before the body loads it, and tell what is wrong with a damaged folder in one line.

    source: a folder or a Hub id; options: those of `from_pretrained`, which say where and what to read.
    """
    checked = options.get("state_dict") is not None or source is None or check_saved(source, options)
    try:
        yield
    except HasheeError:
        raise
    except Exception as error:
        # The files are as they were saved: what goes wrong then is between transformers and its caller.
        if checked:
            raise
        raise CheckpointError(
            f"cannot load a model from {source}, which is damaged or cut short ({first_line(error)}); copy it again"
        ) from error


def check_saved(source: Any, options: Mapping[str, Any] | None = None) -> bool:
    """Raise CheckpointError if a saved model is not as it was saved; return whether all of it could be checked."""
    options = options or {}
    path = located(source, CONFIG, options)
    if path is None:
        folder = Path(source) / (options.get("subfolder") or "")
        elsewhere = options.get("config") is not None or (folder / _ADAPTER).exists()
        if folder.is_dir() and not elsewhere:
            raise CheckpointError(f"{folder} holds no {CONFIG}; name the folder of a saved model, or save it again")
        return False
    document = read_config(path)
    checksums = check_config(document, path)
    _check_depth(document, path)
    files = checksums.get("files")
    if files is None:
        return False
    if not isinstance(files, dict) or not all(isinstance(name, str) and "/" not in name for name in files):
        raise CheckpointError(f"{path} is damaged ({ENTRY} names no files); {_REMEDY}")
    for name, checksum in files.items():
        _check_file(located(source, name, options), name, checksum, path)
    _check_precedence(path.parent, files, options.get("variant"))
    # An adapter beside the model is read as well, and nothing is known of it.
    return "config" in checksums and not (path.parent / _ADAPTER).exists()


def check_config(document: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    """Raise CheckpointError if a config is not as it was saved; return its checksums, empty if it has none."""
    settings = document.get("hashee")
    checksums = settings.get(ENTRY) if isinstance(settings, dict) else None
    if checksums is None:
        return {}
    if checksums == _UNFINISHED:
        raise CheckpointError(f"saving to {path.parent} was interrupted; save the model again")
    if not isinstance(checksums, dict) or checksums.get("algorithm") != ALGORITHM:
        raise CheckpointError(f"{path} has {ENTRY} that this hashee does not know; copy it again or upgrade hashee")
    if "config" in checksums and checksums["config"] != _checksum_of_config(document):
        raise CheckpointError(
            f"{path} is not as it was saved (its checksum differs): copy it again; if you changed it on purpose, "
            f'delete "config" from "{ENTRY}" in its "hashee"'
        )
    return checksums


def read_config(path: Path) -> dict[str, Any]:
    """Return a model's config.json, refusing names that are none and a depth that would be built for ever."""
    document = read_json_object(path, _REMEDY)
    names = document.get("architectures")
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise CheckpointError(f"{path} is damaged (architectures is {shortened(names)}); {_REMEDY}")
    for name in (*_DEPTHS, *_DECODER_DEPTHS):
        depth = document.get(name, 0)
        depth = 0 if depth is None and name in _DECODER_DEPTHS else depth
        if isinstance(depth, bool) or not isinstance(depth, int) or not 0 <= depth <= MOST_LAYERS:
            raise CheckpointError(f"{path} is damaged ({name} is {shortened(depth)}); {_REMEDY}")
    return document


def _check_depth(document: Mapping[str, Any], path: Path) -> None:
    """Refuse a converted model whose layers are not those of its table."""
    settings = document.get("hashee")
    settings = settings if isinstance(settings, dict) else {}
    table, of_decoder = settings.get("table"), settings.get("decoder_table")
    described: list[tuple[Any, tuple[str, ...]]] = []
    # A model that only decodes has one table, of all of its layers.
    if table is not None or of_decoder is None:
        described.append((table, _DEPTHS))
    if of_decoder is not None:
        described.append((of_decoder, _DEPTHS if table is None else _DECODER_DEPTHS))
    for each, names in described:
        if not isinstance(each, dict):
            raise CheckpointError(f'{path} is damaged (its "hashee" describes no table); {_REMEDY}')
        depth = next((document[name] for name in names if name in document), None)
        if depth is not None and depth != each.get("num_layers"):
            told = shortened(each.get("num_layers"))
            raise CheckpointError(f"{path} is damaged (the model has {depth} layers but its table {told}); {_REMEDY}")


def read_json_object(path: Path, remedy: str) -> dict[str, Any]:
    """Return the JSON object in a file, or say in one line why there is none."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError) as error:
        raise CheckpointError(f"{path} is damaged or not valid JSON ({first_line(error)}); {remedy}") from None
    if not isinstance(document, dict):
        raise CheckpointError(f"{path} is damaged (not a JSON object but {type(document).__name__}); {remedy}")
    return document


def located(source: Any, name: str, options: Mapping[str, Any] | None = None) -> Path | None:
    """Return where a file of a folder or a Hub id is, downloading it if need be; None if it is not there."""
    where = {key: value for key, value in (options or {}).items() if key in _WHERE and value is not None}
    folder = Path(source) / where.get("subfolder", "")
    if Path(source).is_dir():
        return folder / name if (folder / name).is_file() else None
    from transformers.utils.hub import cached_file  # noqa: PLC0415  # slow to import, and folders do not need it

    try:
        found = cached_file(str(source), name, **where)
    except OSError:
        return None
    return None if found is None else Path(found)


def _check_file(path: Path | None, name: str, checksum: Any, config: Path) -> None:
    if path is None:
        raise CheckpointError(f"{config.parent} lacks {name}, which belongs to its {CONFIG}; copy it again")
    if checksum_of_file(path) != checksum:
        raise CheckpointError(
            f"{path} is damaged or does not belong to {CONFIG} (its checksum differs); copy the folder again; if you "
            f'changed it on purpose, delete its entry in "files" of "{ENTRY}" in the config\'s "hashee"'
        )


def _check_precedence(folder: Path, files: Mapping[str, Any], variant: str | None) -> None:
    """Refuse weights that transformers would load in place of those that were saved."""
    weights, index = (_with_variant(name, variant) for name in (_WEIGHTS, _INDEX))
    if index in files and weights not in files and (folder / weights).exists():
        raise CheckpointError(f"{folder / weights} was not saved with this model but would be loaded; remove it")
