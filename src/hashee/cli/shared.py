"""What several commands share: their options, and finding the exit table that they name."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer


class EngineName(StrEnum):
    """Where work on many texts is done."""

    local = "local"
    ray = "ray"


Texts = Annotated[list[Path], typer.Argument(help="Files of texts: .txt, .jsonl, .csv, .tsv (also .gz) or .parquet.")]
TokenizerPath = Annotated[str, typer.Option(help="Folder or Hub id of a tokenizer.")]
OptionalTokenizerPath = Annotated[str | None, typer.Option(help="Folder or Hub id; default: the model's own.")]
TablePath = Annotated[Path | None, typer.Option(help="Folder of an exit table; default: the converted model's own.")]
Column = Annotated[str | None, typer.Option(help="Column that holds the text; guessed if left out.")]
PairColumn = Annotated[str | None, typer.Option(help="Column of the second text of a pair; guessed with the first.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def table_for(config: Any, model: str, table: Path | None) -> Any:
    """Return the table that was named, else the one a converted model carries, else None."""
    from hashee.hf.opening import read_table

    if table is not None:
        return read_table(table)
    return read_table(Path(model)) if getattr(config, "hashee", None) is not None else None
