"""What a text costs, counted from a config, an exit table and token ids; no weights are needed."""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, islice
from typing import Any

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table as RichTable
from rich.text import Text
from transformers import PreTrainedConfig

from hashee.cost.macs import (
    BERT_BASE,
    Costs,
    Counts,
    LayerCost,
    dense_macs,
    executed_by_layer,
    executed_macs,
    layer_cost,
    paper_by_layer,
)
from hashee.data.tokenizing import token_ids
from hashee.errors import InputError, TableMismatch
from hashee.families.adapters import adapter_for, head_reads_first_row
from hashee.tables.table import ExitTable

_TEXTS_AT_ONCE = 1024
"""Texts whose exits are counted together; memory is bounded by it."""


@dataclass(frozen=True)
class FlopCount:
    """The cost of some texts in multiply-accumulates (FLOPs are twice as many); real lengths, embeddings free."""

    texts: int
    tokens: int
    layers: tuple[LayerCost, ...]
    paper_macs: int
    """With exits, by the paper's count."""
    executed_macs: int
    """With exits, as the engine runs each text: see `executed_macs`."""
    full_depth_macs: int
    """The model that was given, without exits and at the depth it has."""
    bert_base_macs: int
    """12-layer BERT-base on the same tokens."""

    @property
    def speedup(self) -> float:
        """Full depth of this model / executed count."""
        return self.full_depth_macs / max(self.executed_macs, 1)

    @property
    def paper_speedup(self) -> float:
        """Full depth of this model / paper's count."""
        return self.full_depth_macs / max(self.paper_macs, 1)

    @property
    def executed_speedup(self) -> float:
        """The former name of `speedup`."""
        warnings.warn("executed_speedup is called speedup now", DeprecationWarning, stacklevel=2)
        return self.speedup

    @property
    def speedup_vs_bert_base(self) -> float:
        """12-layer BERT-base / paper's count: the paper's speed-up."""
        return self.bert_base_macs / max(self.paper_macs, 1)

    def to_dict(self) -> dict[str, Any]:
        """Return the counts and ratios as plain values for JSON."""
        layers = [asdict(layer) | {"macs": layer.macs} for layer in self.layers]
        ratios = {name: getattr(self, name) for name in ("speedup", "paper_speedup", "speedup_vs_bert_base")}
        return asdict(self) | {"layers": layers} | ratios

    def __str__(self) -> str:
        rows = (
            ("paper's count", self.paper_macs, f"{self.paper_speedup:.2f}x less than full depth"),
            ("executed", self.executed_macs, f"{self.speedup:.2f}x less than full depth"),
            ("full depth", self.full_depth_macs, ""),
            ("12-layer BERT-base", self.bert_base_macs, f"{self.speedup_vs_bert_base:.2f}x the paper's count"),
        )
        lines = [f"{name:<18} {macs / 1e9:12,.3f} GMACs   {note}".rstrip() for name, macs, note in rows]
        return "\n".join([f"{self.texts:,} texts, {self.tokens:,} tokens", *lines])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = RichTable()
        for column in ("layer", "active tokens", "share", "GMACs"):
            table.add_column(column, justify="right")
        for cost in self.layers:
            share = cost.active / max(self.tokens, 1)
            table.add_row(str(cost.layer), f"{cost.active:,}", f"{share:.1%}", f"{cost.macs / 1e9:,.3f}")
        yield table
        yield Text(str(self))


def count_flops(
    model_or_config: Any,
    texts_or_ids: Any,
    table: ExitTable | None = None,
    tokenizer: Any = None,
    *,
    reads_first_row: bool | None = None,
) -> FlopCount:
    """Count what texts cost in a model with exits.

    texts_or_ids: any iterable of texts, (text, text) pairs, or token id lists that include the special tokens. Texts
    are cut at the model's length. Without `table`, a converted model's own is used; other models run at full depth.
    reads_first_row: whether the head reads the first position only; a model tells, for a config it is False.
    """
    config = model_or_config if isinstance(model_or_config, PreTrainedConfig) else model_or_config.config
    adapter = adapter_for(config)
    shape = adapter.shape(config)
    if table is None:
        table = _own_table(model_or_config, config, shape.layers)
    table.check(num_layers=shape.layers)
    if tokenizer is None:
        tokenizer = getattr(model_or_config, "_tokenizer", None)
    elif table.tokenizer_fingerprint is not None:
        table.check(tokenizer=tokenizer)
    if reads_first_row is None:
        reads_first_row = head_reads_first_row(model_or_config)

    n, m = lengths_and_active(table, token_ids(texts_or_ids, tokenizer, adapter.max_length(config)))
    layers = tuple(layer_cost(shape, number, n, m[:, number]) for number in range(1, table.num_layers + 1))
    return FlopCount(
        texts=len(n),
        tokens=int(n.sum()),
        layers=layers,
        paper_macs=sum(layer.macs for layer in layers),
        executed_macs=executed_macs(shape, n, m, reads_first_row),
        full_depth_macs=dense_macs(shape, shape.layers, n),
        bert_base_macs=dense_macs(BERT_BASE, BERT_BASE.layers, n),
    )


def costs_of(config: Any, table: ExitTable, ids: Sequence[Sequence[int]], reads_first_row: bool) -> Costs:
    """Count what each text costs in a model with a table: (texts,). ids: token ids, special tokens included."""
    shape = adapter_for(config).shape(config)
    lengths, active = lengths_and_active(table, ids)
    return Costs(
        executed_by_layer(shape, lengths, active, reads_first_row).sum(axis=1),
        paper_by_layer(shape, lengths, active).sum(axis=1),
    )


def lengths_and_active(table: ExitTable, items: Iterable[Sequence[int]]) -> tuple[Counts, Counts]:
    """Return how many tokens each text has, (texts,), and how many each layer updates, (texts, layers + 1)."""
    exit_layers, layers = table.exit_layers.numpy(), table.num_layers
    all_lengths, all_active = [np.zeros(0, np.int64)], [np.zeros((0, layers + 1), np.int64)]
    rows = iter(items)
    while some := list(islice(rows, _TEXTS_AT_ONCE)):
        lengths = np.array([len(ids) for ids in some], dtype=np.int64)
        ids = np.fromiter(chain.from_iterable(some), np.int64, int(lengths.sum()))
        if len(ids) and (ids.min() < 0 or ids.max() >= len(exit_layers)):
            raise InputError(f"token id {ids.max()} is outside the exit table of {len(exit_layers)} tokens")
        # One count for all texts: each has a range of bins of its own.
        bins = np.repeat(np.arange(len(some)) * (layers + 1), lengths) + exit_layers[ids]
        exits = np.bincount(bins, minlength=len(some) * (layers + 1)).reshape(len(some), layers + 1)
        all_lengths.append(lengths)
        all_active.append(lengths[:, None] - np.cumsum(exits, axis=1) + exits)
    return np.concatenate(all_lengths), np.concatenate(all_active)


def _own_table(model_or_config: Any, config: Any, depth: int) -> ExitTable:
    """Return the table that a model carries, or one by which nothing exits."""
    if hasattr(model_or_config, "exit_table"):
        own: ExitTable = model_or_config.exit_table
        return own
    if getattr(config, "hashee", None) is not None:
        raise TableMismatch("a converted model's config does not hold its exit table; pass the model, or table=...")
    return ExitTable.never(config.vocab_size, depth)
