"""Reading a converted model's exit table from its folder without loading the model."""

from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from hashee.errors import CheckpointError, first_line
from hashee.hf.integrity import CONFIG, check_saved, located, read_config
from hashee.tables.table import ExitTable


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
    if not isinstance(settings, dict) or not isinstance(settings.get("table"), dict):
        raise CheckpointError(f'{path} is damaged (its "hashee" describes no table); save the model again')
    table = ExitTable.from_parts(_exit_layers(path.parent), settings["table"])
    if tokenizer is not None:
        table.check(tokenizer=tokenizer)
    return table


def _exit_layers(folder: Path) -> Any:
    """Return the exit layers among a model's weights, whatever their prefix."""
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118  # not a dict
                    if name.split(".")[-1] == "exit_layers":
                        return file.get_tensor(name)
        except (SafetensorError, OSError, ValueError, RuntimeError) as error:
            raise CheckpointError(f"{path} is damaged or cut short ({first_line(error)}); copy it again") from None
    raise CheckpointError(f"no weights in {folder} hold an exit table; save the model again")
