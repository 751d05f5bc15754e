"""`hashee table build` and `hashee table show`."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from hashee.cli.shared import AsJson, Column, EngineName, OptionalTokenizerPath, PairColumn, TokenizerPath
from hashee.errors import HasheeError


class Method(StrEnum):
    """Ways to build an exit table."""

    frequency = "frequency"
    mutual_information = "mi"
    clustered = "clustered"
    random = "random"


def build_table(
    tokenizer: TokenizerPath,
    num_layers: Annotated[int, typer.Option(help="Layers that the model keeps.")],
    output: Annotated[Path, typer.Option(help="Folder to write the table to.")],
    texts: Annotated[list[Path] | None, typer.Argument(help="Files of texts (not for clustered and random).")] = None,
    method: Annotated[Method, typer.Option(help="What orders the tokens.")] = Method.frequency,
    num_buckets: Annotated[int | None, typer.Option(help="Groups of tokens; default: as many as layers.")] = None,
    min_exit: Annotated[int, typer.Option(help="0 lets the first bucket exit before layer 1.")] = 1,
    column: Column = None,
    pair_column: PairColumn = None,
    label_column: Annotated[str | None, typer.Option(help="Column of the label, for mi.")] = None,
    model: Annotated[str | None, typer.Option(help="Model whose embeddings are clustered, for clustered.")] = None,
    seed: Annotated[int, typer.Option(help="Seed, for clustered and random.")] = 0,
    engine: Annotated[EngineName, typer.Option(help="Count tokens here or on a Ray cluster.")] = EngineName.local,
    address: Annotated[
        str | None, typer.Option(help="Ray cluster that is running, HOST:PORT or auto; default: one on this machine.")
    ] = None,
) -> None:
    """Build an exit table and save it."""
    from hashee.data.texts import read_labelled, read_texts
    from hashee.hf.opening import open_dense, open_tokenizer
    from hashee.tables.table import ExitTable

    if method in (Method.frequency, Method.mutual_information) and not texts:
        raise HasheeError(f"--method {method} counts tokens in texts; name at least one file")
    loaded = open_tokenizer(tokenizer)
    shared: dict[str, Any] = {"num_layers": num_layers, "num_buckets": num_buckets, "min_exit": min_exit}
    if method is Method.frequency:
        counted = read_texts(texts or [], column, pair_column)
        table = ExitTable.by_frequency(loaded, _counted(tokenizer, counted, None, engine, address), **shared)
    elif method is Method.mutual_information:
        # Scores are binned by their quantiles, so labels are needed before the first text is counted.
        labels = [label for _, label in read_labelled(texts or [], label_column, column, pair_column)]
        counted = _counted(tokenizer, read_texts(texts or [], column, pair_column), labels, engine, address)
        table = ExitTable.by_mutual_information(loaded, counted, None if engine is EngineName.ray else labels, **shared)
    elif method is Method.clustered:
        if model is None:
            raise HasheeError("--method clustered clusters a model's input embeddings; name it with --model")
        table = ExitTable.by_clusters(loaded, open_dense(model, new_head=True), seed=seed, **shared)
    else:
        table = ExitTable.at_random(loaded, seed=seed, **shared)
    table.save(output)
    console = Console()
    console.print(table.describe(loaded), markup=False, highlight=False, soft_wrap=True)
    console.print(f"saved to {output}", markup=False, highlight=False, soft_wrap=True)


def _counted(tokenizer: str, texts: Any, labels: Any, engine: EngineName, address: str | None) -> Any:
    """Return texts as they are, or with a Ray cluster the counts of their tokens."""
    if engine is EngineName.local:
        if address is not None:
            raise HasheeError("--address is for --engine ray; leave it out, or say --engine ray")
        return texts
    from hashee.bulk.ray_tables import Cluster, count_on_ray

    if labels is not None and any(isinstance(label, float) for label in labels):
        raise HasheeError("on Ray, labels are classes; count scores, which are binned, with --engine local")
    return count_on_ray(tokenizer, texts, labels, Cluster(address))


def show_table(
    folder: Annotated[Path, typer.Argument(help="Folder of an exit table or of a converted model.")],
    tokenizer: OptionalTokenizerPath = None,
    as_json: AsJson = False,
) -> None:
    """Print tokens and occurrences per layer."""
    from hashee.hf.opening import open_tokenizer, read_table

    loaded = None if tokenizer is None else open_tokenizer(tokenizer)
    table = read_table(folder, loaded)
    if as_json:
        print(json.dumps(table.metadata()))
    else:
        Console().print(table.describe(loaded), markup=False, highlight=False, soft_wrap=True)
