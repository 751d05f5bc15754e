"""`hashee flops`: what texts cost."""

import json
from typing import Annotated

import typer
from rich.console import Console

from hashee.cli.shared import AsJson, Column, OptionalTokenizerPath, PairColumn, TablePath, Texts, table_for


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
    from hashee.data.texts import read_texts
    from hashee.hf.flops import count_flops
    from hashee.hf.opening import open_config, open_tokenizer

    loaded = open_tokenizer(tokenizer or model)
    config = open_config(model)
    count = count_flops(config, read_texts(texts, column, pair_column), table_for(config, model, table), loaded)
    if as_json:
        print(json.dumps(count.to_dict()))
    else:
        Console().print(count)
