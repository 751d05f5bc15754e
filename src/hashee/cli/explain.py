"""`hashee explain`: where the tokens of a text exit."""

import json
from typing import Annotated

import typer
from rich.console import Console

from hashee.cli.shared import AsJson, OptionalTokenizerPath, TablePath, table_for
from hashee.errors import HasheeError


def explain(
    model: Annotated[str, typer.Argument(help="Folder, config.json or Hub id of a model; weights are not needed.")],
    texts: Annotated[list[str], typer.Argument(help="Texts to explain.")],
    table: TablePath = None,
    tokenizer: OptionalTokenizerPath = None,
    as_json: AsJson = False,
) -> None:
    """Show every token of a text with its exit layer, and what the text costs."""
    from hashee.hf.explain import explain as explain_text
    from hashee.hf.opening import open_config, open_tokenizer

    loaded = open_tokenizer(tokenizer or model)
    config = open_config(model)
    found = table_for(config, model, table)
    if found is None:
        raise HasheeError(f"the model in {model} has no exits; name a table with --table")
    found.check(tokenizer=loaded)
    explanations = [explain_text(config, found, loaded, text) for text in texts]
    if as_json:
        print(json.dumps([explanation.to_dict() for explanation in explanations]))
    else:
        console = Console()
        for explanation in explanations:
            console.print(explanation)
