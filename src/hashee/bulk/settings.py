"""What a bulk job is told: which rows, which model, how they are scored, and where."""

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from hashee.errors import InputError


class Format(StrEnum):
    """Formats of the parts."""

    jsonl = "jsonl"
    parquet = "parquet"


@dataclass(frozen=True)
class ModelOptions:
    """How a model is opened."""

    folder: str
    """Of a converted, exported, dense or sentence-transformers model; or `minilm`."""
    backend: str = "torch"
    quantize: str | None = None
    pooling: str | None = None
    """Of a plain encoder, `mean` or `cls`: embeddings instead of the states of tokens."""
    prompt: str | None = None
    """Name of a prompt of an embedder; None for its default."""


@dataclass(frozen=True)
class RowOptions:
    """How rows are read and grouped."""

    column: str | None = None
    pair_column: str | None = None
    batch_tokens: int = 2048
    part_rows: int = 4096
    """Rows of the input that a part stands for, those that cannot be read among them."""
    format: Format = Format.jsonl

    def __post_init__(self) -> None:
        if min(self.batch_tokens, self.part_rows) < 1:
            raise InputError(f"a batch needs a token and a part a row, not {self.batch_tokens} and {self.part_rows}")


@dataclass(frozen=True)
class BulkJob:
    """One job: the rows of a file or folder, scored into another folder."""

    model: ModelOptions
    texts: Path
    output: Path
    rows: RowOptions = field(default_factory=RowOptions)
    threads: int = 1
    """Of each process that runs the model. Sums of floats depend on it, so it is part of what a job goes on with."""

    def options(self) -> dict[str, Any]:
        """Return what every byte of the output depends on besides model and input, as JSON values."""
        model = {name: value for name, value in asdict(self.model).items() if name != "folder"}
        return model | asdict(self.rows) | {"format": str(self.rows.format), "threads": self.threads}
