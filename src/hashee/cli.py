"""The `hashee` command: a thin shell over the library."""

import json
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from hashee.errors import HasheeError
from hashee.evaluating.command import SeveralValues, evaluate, tradeoff
from hashee.fitting.command import fit
from hashee.pretrained import read_pretrained
from hashee.speed.command import speed

app = typer.Typer(
    help="Transformer encoders in which every token has a fixed exit layer.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
table_app = typer.Typer(help="Build and look at exit tables.", no_args_is_help=True)
app.add_typer(table_app, name="table")
export_app = typer.Typer(help="Write converted models for other runtimes.", no_args_is_help=True)
app.add_typer(export_app, name="export")
app.command()(fit)
app.command()(evaluate)
app.command(cls=SeveralValues)(tradeoff)
app.command()(speed)
console = Console()


class Method(StrEnum):
    """Ways to build an exit table."""

    frequency = "frequency"
    mutual_information = "mi"
    clustered = "clustered"
    random = "random"


Texts = Annotated[list[Path], typer.Argument(help="Files of texts: .txt, .jsonl, .csv, .tsv (also .gz) or .parquet.")]
TokenizerPath = Annotated[str, typer.Option(help="Folder or Hub id of a tokenizer.")]
OptionalTokenizerPath = Annotated[str | None, typer.Option(help="Folder or Hub id; default: the model's own.")]
TablePath = Annotated[Path | None, typer.Option(help="Folder of an exit table; default: the converted model's own.")]
Column = Annotated[str | None, typer.Option(help="Column that holds the text; guessed if left out.")]
PairColumn = Annotated[str | None, typer.Option(help="Column of the second text of a pair; guessed with the first.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@table_app.command("build")
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
) -> None:
    """Build an exit table and save it."""
    from hashee.table import ExitTable
    from hashee.texts import read_labelled, read_texts

    if method in (Method.frequency, Method.mutual_information) and not texts:
        raise HasheeError(f"--method {method} counts tokens in texts; name at least one file")
    loaded = load_tokenizer(tokenizer)
    shared: dict[str, Any] = {"num_layers": num_layers, "num_buckets": num_buckets, "min_exit": min_exit}
    if method is Method.frequency:
        table = ExitTable.by_frequency(loaded, read_texts(texts or [], column, pair_column), **shared)
    elif method is Method.mutual_information:
        # Scores are binned by their quantiles, so labels are needed before the first text is counted.
        labels = [label for _, label in read_labelled(texts or [], label_column, column, pair_column)]
        table = ExitTable.by_mutual_information(loaded, read_texts(texts or [], column, pair_column), labels, **shared)
    elif method is Method.clustered:
        if model is None:
            raise HasheeError("--method clustered clusters a model's input embeddings; name it with --model")
        table = ExitTable.by_clusters(loaded, load_model(model), seed=seed, **shared)
    else:
        table = ExitTable.at_random(loaded, seed=seed, **shared)
    table.save(output)
    console.print(table.describe(loaded), markup=False, highlight=False, soft_wrap=True)
    console.print(f"saved to {output}", markup=False, highlight=False, soft_wrap=True)


@table_app.command("show")
def show_table(
    folder: Annotated[Path, typer.Argument(help="Folder of an exit table or of a converted model.")],
    tokenizer: OptionalTokenizerPath = None,
    as_json: AsJson = False,
) -> None:
    """Print tokens and occurrences per layer."""
    from hashee.checkpoint import read_table

    loaded = None if tokenizer is None else load_tokenizer(tokenizer)
    table = read_table(folder, loaded)
    if as_json:
        print(json.dumps(table.metadata()))
    else:
        console.print(table.describe(loaded), markup=False, highlight=False, soft_wrap=True)


@app.command()
def flops(
    model: Annotated[str, typer.Argument(help="Folder, config.json or Hub id of a model; weights are not needed.")],
    texts: Texts,
    table: TablePath = None,
    tokenizer: OptionalTokenizerPath = None,
    column: Column = None,
    pair_column: PairColumn = None,
    as_json: AsJson = False,
) -> None:
    """Count what texts cost: the paper's count, the executed count and full depth."""
    from hashee.flops import count_flops
    from hashee.texts import read_texts

    loaded = load_tokenizer(tokenizer or model)
    config = load_config(model)
    count = count_flops(config, read_texts(texts, column, pair_column), _table_for(config, model, table), loaded)
    if as_json:
        print(json.dumps(count.to_dict()))
    else:
        console.print(count)


@app.command()
def explain(
    model: Annotated[str, typer.Argument(help="Folder, config.json or Hub id of a model; weights are not needed.")],
    texts: Annotated[list[str], typer.Argument(help="Texts to explain.")],
    table: TablePath = None,
    tokenizer: OptionalTokenizerPath = None,
    as_json: AsJson = False,
) -> None:
    """Show every token of a text with its exit layer, and what the text costs."""
    from hashee.explain import explain as explain_text

    loaded = load_tokenizer(tokenizer or model)
    config = load_config(model)
    found = _table_for(config, model, table)
    if found is None:
        raise HasheeError(f"the model in {model} has no exits; name a table with --table")
    found.check(tokenizer=loaded)
    explanations = [explain_text(config, found, loaded, text) for text in texts]
    if as_json:
        print(json.dumps([explanation.to_dict() for explanation in explanations]))
    else:
        for explanation in explanations:
            console.print(explanation)


@export_app.command("onnx")
def export_onnx(
    model: Annotated[Path, typer.Argument(help="Folder of a converted model.")],
    output: Annotated[Path, typer.Argument(help="Folder to write to.")],
    opset: Annotated[int, typer.Option(help="ONNX opset, 17 to 22.")] = 17,
) -> None:
    """Write a converted model as one ONNX file with the exits inside, and its tokenizer."""
    from transformers.utils import logging

    import hashee
    from hashee.export import export_onnx as export

    logging.disable_progress_bar()
    loaded = hashee.load(model)
    folder = export(loaded, output, tokenizer=loaded.tokenizer, opset=opset)
    console.print(f"saved to {folder}", markup=False, highlight=False, soft_wrap=True)


def _table_for(config: Any, model: str, table: Path | None) -> Any:
    """Return the table that was named, else the one a converted model carries, else None."""
    from hashee.checkpoint import read_table

    if table is not None:
        return read_table(table)
    return read_table(Path(model)) if getattr(config, "hashee", None) is not None else None


def load_tokenizer(path: str) -> Any:
    """Load a tokenizer from a folder (or the folder of a config file) or the Hub, or say why not in one line."""
    from transformers import AutoTokenizer

    return read_pretrained(AutoTokenizer, str(Path(path).parent) if path.endswith(".json") else path, "tokenizer")


def load_config(path: str) -> Any:
    """Load a config from a folder, a file or the Hub, or say why not in one line."""
    from transformers import AutoConfig

    import hashee  # noqa: F401  # registers the converted model types

    return read_pretrained(AutoConfig, path, "config")


def load_model(path: str) -> Any:
    """Load a model from a folder or the Hub, or say why not in one line."""
    from transformers import AutoModel

    return read_pretrained(AutoModel, path, "model")


def main() -> None:
    """Run the command line; what users can mend is one line and exit code 2."""
    # Progress and loading reports of transformers would bury our own output.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        app(standalone_mode=True)
    except HasheeError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        print(f"error: {error.strerror or error}{f': {error.filename}' if error.filename else ''}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
