"""`hashee flops`: what texts cost, and what many of them take."""

import json
from typing import Annotated, Any

import typer
from rich.console import Console

from hashee.cli.shared import AsJson, Column, OptionalTokenizerPath, PairColumn, TablePath, Texts, table_for

_MEASURED = 2048
"""Texts at most that rates are measured on."""
_Rate = Annotated[float | None, typer.Option(help="For --plan: of a core; default: measured here on the texts.")]


def flops(
    model: Annotated[str, typer.Argument(help="Folder, config.json or Hub id of a model; weights are not needed.")],
    texts: Texts,
    table: TablePath = None,
    tokenizer: OptionalTokenizerPath = None,
    column: Column = None,
    pair_column: PairColumn = None,
    as_json: AsJson = False,
    plan: Annotated[bool, typer.Option("--plan", help="Hours and cost of many such texts, against dense.")] = False,
    rows: Annotated[float, typer.Option(help="For --plan: texts in all.")] = 1e9,
    cores: Annotated[int, typer.Option(help="For --plan: cores that score them.")] = 64,
    price: Annotated[float, typer.Option(help="For --plan: of a core for an hour.")] = 0.04,
    macs_per_second: _Rate = None,
    dense_macs_per_second: Annotated[
        float | None, typer.Option(help="For --plan: the same of the dense model; default: as with exits.")
    ] = None,
    dense: Annotated[str | None, typer.Option(help="For --plan: folder of the dense model, to measure it too.")] = None,
) -> None:
    """Count what texts cost: the paper's count, the executed count and full depth; plan what many take."""
    from hashee.data.texts import read_texts
    from hashee.hf.flops import count_flops
    from hashee.hf.opening import open_config, open_tokenizer

    loaded = open_tokenizer(tokenizer or model)
    config = open_config(model)
    read = list(read_texts(texts, column, pair_column)) if plan else read_texts(texts, column, pair_column)
    found = table_for(config, model, table)
    count = count_flops(config, read, found, loaded)
    if plan:
        from hashee.cost.capacity import Fleet

        measure = _Measuring(model, dense, lambda sample: count_flops(config, sample, found, loaded))
        rates = measure.rates(read, macs_per_second, dense_macs_per_second)
        _print_plan(count, Fleet(rows, cores, price), rates, as_json)
    elif as_json:
        print(json.dumps(count.to_dict()))
    else:
        Console().print(count)


class _Measuring:
    """Measures the rates that were not given."""

    def __init__(self, model: str, dense: str | None, count: Any) -> None:
        self.model, self.dense, self.count = model, dense, count

    def rates(self, texts: Any, given: float | None, given_dense: float | None) -> tuple[float, float]:
        """Return multiply-accumulates per second of a core, with exits and dense."""
        folders = [self.model] if given is None else []
        folders += [self.dense] if self.dense is not None and given_dense is None else []
        measured: dict[str, float] = {}
        if folders:
            from hashee.bulk.rates import seconds_of

            sample = texts[:_MEASURED]
            count = self.count(sample)
            for folder, seconds in zip(folders, seconds_of(folders, sample), strict=True):
                macs = count.full_depth_macs if folder == self.dense else count.executed_macs
                measured[folder] = macs / seconds
        rate = given if given is not None else measured[self.model]
        if given_dense is not None:
            return rate, given_dense
        return rate, measured.get(self.dense or "", rate)


def _print_plan(count: Any, fleet: Any, rates: tuple[float, float], as_json: bool) -> None:
    from hashee.cost import capacity

    each = max(count.texts, 1)
    estimates = (
        capacity.estimate(count.executed_macs / each, rates[0], fleet),
        capacity.estimate(count.full_depth_macs / each, rates[1], fleet),
    )
    print(json.dumps(capacity.as_json(fleet, *estimates)) if as_json else capacity.as_lines(fleet, *estimates))
