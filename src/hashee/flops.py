"""What a text costs, counted from a config, an exit table and token ids; no weights are needed."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, islice
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table as RichTable
from rich.text import Text
from transformers import PreTrainedConfig

from hashee.adapters import EncoderShape, adapter_for
from hashee.attention import absorbing_saves
from hashee.errors import InputError, TableMismatch
from hashee.local_attention import band_length
from hashee.table import ExitTable
from hashee.texts import text_columns

Counts = npt.NDArray[np.int64]

BERT_BASE = EncoderShape(layers=12, width=768, heads=12, inner=3072)
"""What the paper's speed-ups are relative to."""


@dataclass(frozen=True)
class LayerCost:
    """Multiply-accumulates of one layer over all texts, by what they are spent on."""

    layer: int
    active: int
    """Tokens that the layer updates."""
    projections: int
    """Query, key, value and output projections."""
    attention: int
    """Scores and weighted sums: the matrix products of attention."""
    softmax: int
    norms: int
    feed_forward: int

    @property
    def macs(self) -> int:
        """All of them: the paper's count."""
        return self.projections + self.attention + self.softmax + self.norms + self.feed_forward

    @property
    def matmul_macs(self) -> int:
        """Those in matrix products, which is what `torch.utils.flop_counter` sees (as two FLOPs each)."""
        return self.projections + self.attention + self.feed_forward


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
        """Full depth of this model / paper's count."""
        return self.full_depth_macs / max(self.paper_macs, 1)

    @property
    def executed_speedup(self) -> float:
        """Full depth of this model / executed count."""
        return self.full_depth_macs / max(self.executed_macs, 1)

    @property
    def speedup_vs_bert_base(self) -> float:
        """12-layer BERT-base / paper's count: the paper's speed-up."""
        return self.bert_base_macs / max(self.paper_macs, 1)

    def to_dict(self) -> dict[str, Any]:
        """Return the counts and ratios as plain values for JSON."""
        layers = [asdict(layer) | {"macs": layer.macs} for layer in self.layers]
        ratios = {name: getattr(self, name) for name in ("speedup", "executed_speedup", "speedup_vs_bert_base")}
        return asdict(self) | {"layers": layers} | ratios

    def __str__(self) -> str:
        rows = (
            ("paper's count", self.paper_macs, f"{self.speedup:.2f}x less than full depth"),
            ("executed", self.executed_macs, f"{self.executed_speedup:.2f}x less than full depth"),
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

    n, m = _lengths_and_active(table, token_ids(texts_or_ids, tokenizer, adapter.max_length(config)))
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


def head_reads_first_row(model_or_config: Any) -> bool:
    """Tell whether a model's head reads the first position only, converted or to be converted; a config has no head."""
    if isinstance(model_or_config, PreTrainedConfig):
        return False
    encoder = getattr(model_or_config, "hashed_encoder", None)
    if encoder is not None:
        return bool(encoder.reads_first_row)
    return adapter_for(model_or_config.config).reads_first_row(type(model_or_config), model_or_config.config)


def layer_cost(shape: EncoderShape, layer: int, n: Counts, m: Counts) -> LayerCost:
    """Count one layer in the plain form over texts of n tokens, m of which it updates. n, m: (texts,)."""
    # A text with no active token left costs nothing: nobody reads its keys and values.
    n = np.where(m > 0, n, 0)
    d, times = shape.width, shape.blocks_per_layer
    pairs = int((m * keys_read(shape, layer, n)).sum())
    return LayerCost(
        layer=layer,
        active=int(m.sum()),
        projections=times * int((2 * m + 2 * n).sum()) * d * d,
        attention=times * 2 * pairs * d,
        softmax=times * 2 * pairs * shape.heads,
        norms=times * 4 * int(m.sum()) * d,
        feed_forward=times * int(m.sum()) * feed_forward_macs(shape),
    )


def dense_macs(shape: EncoderShape, layers: int, n: Counts) -> int:
    """Count texts of n tokens in a model without exits, by its first layers. n: (texts,)"""
    return sum(layer_cost(shape, layer, n, n).macs for layer in range(1, layers + 1))


def keys_read(shape: EncoderShape, layer: int, n: Counts) -> Counts:
    """Return the keys that each query of a layer is multiplied with, in texts of n tokens. n: (texts,)"""
    window = shape.window(layer)
    return n if window is None else np.asarray(band_length(n, window), dtype=np.int64)


def feed_forward_macs(shape: EncoderShape) -> int:
    """Return the multiply-accumulates of one row in the feed-forward's products; a gate is one product more."""
    return (3 if shape.gated else 2) * shape.width * shape.inner


def executed_macs(shape: EncoderShape, n: Counts, m: Counts, reads_first_row: bool) -> int:
    """Count all layers as the engine runs each text on its own on a CPU: the cheaper form of attention, unread rows
    left out, the first layer's projections looked up where the family allows it (of types that were met before).

    n: (texts,) tokens; m: (texts, layers + 1) tokens that each layer updates, entry 0 being all of them.
    """
    if reads_first_row and shape.blocks_per_layer == 1:
        # Of the last layer only the first token is read, if it gets that far.
        m = np.concatenate([m[:, :-1], np.minimum(m[:, -1:], 1)], axis=1)
    d, h, total = shape.width, shape.heads, 0
    for layer in range(1, m.shape[1]):
        active = m[:, layer]
        alive = np.where(active > 0, n, 0)
        # Layers that share their weights project again only what the layer before has changed.
        projected = np.where(active > 0, m[:, layer - 1], 0) if shape.shares_with_previous(layer) else alive
        looked_up = shape.looked_up and layer == 1
        if looked_up:
            projected = np.zeros_like(alive)
        absorbed = (absorbing_saves(projected, active, alive * active, d, h) > 0) & shape.absorbable
        keys_and_values = np.where(absorbed, 2 * active, 2 * projected) * d * d
        read = keys_read(shape, layer, alive) * active * np.where(absorbed, 2 * h * d + 2 * h, 2 * d + 2 * h)
        query_and_output = (1 if looked_up else 2) * d * d
        rest = active * (query_and_output + 4 * d + feed_forward_macs(shape))
        total += shape.blocks_per_layer * int((keys_and_values + read + rest).sum())
    return total


def _lengths_and_active(table: ExitTable, items: Iterator[Sequence[int]]) -> tuple[Counts, Counts]:
    """Return how many tokens each text has, (texts,), and how many each layer updates, (texts, layers + 1)."""
    exit_layers = table.exit_layers.numpy()
    lengths, active = [], []
    for ids in items:
        if len(ids) and (min(ids) < 0 or max(ids) >= len(exit_layers)):
            raise InputError(f"token id {max(ids)} is outside the exit table of {len(exit_layers)} tokens")
        exits = exit_layers[np.asarray(ids, dtype=np.int64)]
        lengths.append(len(ids))
        left = np.cumsum(np.bincount(exits, minlength=table.num_layers + 1))
        active.append(np.concatenate([[len(ids)], len(ids) - left[:-1]]))
    n = np.asarray(lengths, dtype=np.int64)
    return n, np.asarray(active, dtype=np.int64).reshape(len(n), table.num_layers + 1)


def token_ids(texts_or_ids: Any, tokenizer: Any, max_length: int, batch_size: int = 512) -> Iterator[Sequence[int]]:
    """Yield the ids of each item: tokenized with special tokens and cut at `max_length` if it is text."""
    items: Iterator[Any] = iter([texts_or_ids] if isinstance(texts_or_ids, str) else texts_or_ids)
    first = next(items, None)
    if first is None:
        return
    items = chain([first], items)
    if not isinstance(first, str) and not (isinstance(first, tuple | list) and first and isinstance(first[0], str)):
        yield from (ids.tolist() if hasattr(ids, "tolist") else ids for ids in items)
        return
    if tokenizer is None:
        raise InputError("texts need a tokenizer to be counted; pass tokenizer=..., or lists of token ids")
    length = min(max_length, tokenizer.model_max_length)
    number = 0
    while batch := list(islice(items, batch_size)):
        firsts, seconds = text_columns(batch, number)
        number += len(batch)
        yield from tokenizer(firsts, seconds, truncation=True, max_length=length, verbose=False)["input_ids"]


def _own_table(model_or_config: Any, config: Any, depth: int) -> ExitTable:
    """Return the table that a model carries, or one by which nothing exits."""
    if hasattr(model_or_config, "exit_table"):
        own: ExitTable = model_or_config.exit_table
        return own
    if getattr(config, "hashee", None) is not None:
        raise TableMismatch("a converted model's config does not hold its exit table; pass the model, or table=...")
    return ExitTable.never(config.vocab_size, depth)
