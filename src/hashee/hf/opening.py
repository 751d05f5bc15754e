"""The one way to open a folder or a Hub id: configs, tokenizers, exit tables, dense models and converted ones."""

from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from hashee.errors import CheckpointError, first_line, shortened
from hashee.hf.integrity import CONFIG, EXPORTED, check_config, check_saved, located, read_config
from hashee.hf.pretrained import read_pretrained, read_tokenizer
from hashee.hf.weights import Required, check_weights
from hashee.tables.table import ExitTable


def open_config(source: str, what: str = "config") -> Any:
    """Return the config in a folder, a file or on the Hub. what: its name in messages."""
    from transformers import AutoConfig  # noqa: PLC0415  # slow to import

    if Path(source).is_dir() and not (Path(source) / CONFIG).exists():
        raise CheckpointError(f"{source} holds no {CONFIG}; name the folder of a model")
    return read_pretrained(AutoConfig, source, what)


def open_tokenizer(source: str | Path) -> Any:
    """Return the tokenizer in a folder, beside a config file or on the Hub."""
    return read_tokenizer(Path(source).parent if str(source).endswith(".json") else source)


def open_dense(source: str, head: str = "", *, config: Any = None, new_head: bool = False) -> Any:
    """Return a dense model in float32, with all of its weights.

    head: how the name of its class ends, such as `ForSequenceClassification`; none for the encoder alone. config: to
    build it by, if not the folder's own. new_head: whether head and pooler may be drawn anew, as they are where a
    head was fitted for other labels.
    """
    import torch  # noqa: PLC0415  # slow to import
    import transformers  # noqa: PLC0415

    options = {} if config is None else {"config": config}
    auto_class = getattr(transformers, f"AutoModel{head}")
    model, info = read_pretrained(
        auto_class,
        source,
        "model",
        dtype=torch.float32,
        ignore_mismatched_sizes=new_head,
        output_loading_info=True,
        **options,
    )
    required = Required()
    if new_head:
        remedy = f"copy it again, or name a backbone of the type that its config says ({model.config.model_type})"
        required = Required(new_head=True, what="weights of the encoder", remedy=remedy)
    check_weights(model, source, info, required)
    return model


def open_writer(source: str) -> Any:
    """Return a model that reads a text and writes another one, converted or dense, in eval mode."""
    from hashee.hf.writing import check_writes  # noqa: PLC0415  # imports every family

    config = open_config(source, "model")
    if getattr(config, "hashee", None) is not None:
        model = open_converted(source)
    else:
        check_writes(config, source)
        model = open_dense(source, "ForSeq2SeqLM").eval()
    check_writes(model.config, source)
    return model


def open_converted(folder: str | Path) -> Any:
    """Return the converted model in a folder, ready to predict."""
    return _converted_class(Path(folder)).from_pretrained(folder).eval()


def _converted_class(folder: Path) -> Any:
    """Return the class of the converted model in a folder; only classes that hashee made come out of it."""
    # They import every family, which tables and tokenizers do not need.
    from hashee.hf import classes  # noqa: PLC0415
    from hashee.hf.model import HashedModel  # noqa: PLC0415

    path = folder / CONFIG
    if not path.is_file():
        raise CheckpointError(f"{folder} holds no {CONFIG}; name the folder of a converted model")
    document = read_config(path)
    check_config(document, path)
    if (folder / EXPORTED).is_file():
        raise CheckpointError(f"{folder} holds an exported model, which runs on the backend onnx or openvino")
    names = document.get("architectures") or [""]
    found = getattr(classes, names[0], None)
    if not (isinstance(found, type) and issubclass(found, HashedModel) and hasattr(found, "config_class")):
        held = shortened(names[0]) or "no model"
        raise CheckpointError(f"{folder} holds {held}, not a converted model; make one with hashee.convert")
    model_type = document.get("model_type")
    if found.config_class.model_type != model_type:
        raise CheckpointError(
            f"{path} is damaged: it names {names[0]} but the model type {shortened(model_type)}; copy it again"
        )
    return found


def read_table(folder: Path, tokenizer: Any = None) -> ExitTable:
    """Return the exit table in a folder that `ExitTable.save` or a converted model's `save_pretrained` wrote."""
    if (folder / "exit_table.json").exists():
        return ExitTable.load(folder, tokenizer=tokenizer)
    path = located(folder, CONFIG)
    if path is None:
        raise CheckpointError(f"{folder} holds neither exit_table.json nor a converted model's config.json")
    settings = read_config(path).get("hashee")
    if settings is None:
        raise CheckpointError(f"the model in {folder} has no exits; convert it with hashee.convert, or name a table")
    check_saved(folder)
    settings = settings if isinstance(settings, dict) else {}
    # A model that only decodes has the table of its decoder.
    key, name = ("table", "exit_layers") if settings.get("table") else ("decoder_table", "decoder_exit_layers")
    if not isinstance(settings.get(key), dict):
        raise CheckpointError(f'{path} is damaged (its "hashee" describes no table); save the model again')
    table = ExitTable.from_parts(_exit_layers(path.parent, name), settings[key])
    if tokenizer is not None:
        table.check(tokenizer=tokenizer)
    return table


def _exit_layers(folder: Path, wanted: str) -> Any:
    """Return the exit layers of this name among a model's weights, whatever their prefix: (vocabulary,)."""
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118  # not a dict
                    if name.split(".")[-1] == wanted:
                        return file.get_tensor(name)
        except (SafetensorError, OSError, ValueError, RuntimeError) as error:
            raise CheckpointError(f"{path} is damaged or cut short ({first_line(error)}); copy it again") from None
    raise CheckpointError(f"no weights in {folder} hold an exit table; save the model again")
