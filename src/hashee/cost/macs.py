"""Multiply-accumulates of an encoder, counted on plain arrays of lengths; the one cost model of the project."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]

# What a multiply-accumulate of the absorbed form costs, in those of one large projection: its products are many and
# small. From measured rates of both, not from counting.
FOLD_PRICE = 1.3
SCORE_PRICE = 1.4


SMALLEST_BLOCK = 16


def block_length(window: int) -> int:
    """Return how many neighbouring tokens share a band: longer ones mean larger products but more masked pairs."""
    return max(window, SMALLEST_BLOCK)


def band_length(lengths: Any, window: int) -> Any:
    """Return the keys that each query is laid out with. lengths: tokens of each text, a number or an array."""
    return np.minimum(lengths, block_length(window) + 2 * window)


@dataclass(frozen=True)
class AttentionSizes:
    """The numbers that set the cost of one layer's attention."""

    width: int
    """Of the states."""
    heads: int
    inner: int
    """Width of queries, keys and values, all heads together; less than that of the states where heads were pruned."""


@dataclass(frozen=True)
class EncoderShape:
    """The numbers that set the cost of an encoder."""

    layers: int
    width: int
    heads: int
    inner: int
    blocks_per_layer: int = 1
    layers_per_group: float = 1
    """Consecutive layers that share one set of weights (ALBERT)."""
    absorbable: bool = True
    """Whether keys and values can be folded into the query side (not with a position bias or rotary positions)."""
    looked_up: bool = False
    """Whether inference looks up what the first layer projects (`hashee.engine.first_layer`)."""

    windows: tuple[int | None, ...] = ()
    """How far the tokens of each layer see to either side; None, and what is not listed: over the whole text."""
    gated: bool = False
    """Whether the feed-forward has a gate as wide as its inner width (GLU)."""
    kept_heads: tuple[int, ...] = ()
    """Heads that pruning has left in each layer; what is not listed: all of them."""

    def attention(self, layer: int) -> AttentionSizes:
        """Return the sizes of the attention of a layer, from 1."""
        heads = self.kept_heads[layer - 1] if 0 < layer <= len(self.kept_heads) else self.heads
        return AttentionSizes(self.width, heads, heads * self.width // self.heads)

    def window(self, layer: int) -> int | None:
        """Return how far the tokens of a layer, from 1, see."""
        return self.windows[layer - 1] if 0 < layer <= len(self.windows) else None

    def shares_with_previous(self, layer: int) -> bool:
        """Say whether a layer, from 1, has the weights of the one before; frozen tokens then keep keys and values."""
        return layer > 1 and int((layer - 1) / self.layers_per_group) == int((layer - 2) / self.layers_per_group)


BERT_BASE = EncoderShape(layers=12, width=768, heads=12, inner=3072)
"""What the paper's speed-ups are relative to."""


@dataclass(frozen=True)
class Costs:
    """Multiply-accumulates of some examples; sequence exits make them differ from example to example."""

    executed: Counts
    """As the packed engine runs it; (examples,), or (examples, layers) up to each layer."""
    paper: Counts
    """By the paper's count; likewise."""

    def at(self, layers: Counts) -> "Costs":
        """Return what examples cost that stop after these layers. layers: (examples,) from 1."""
        rows = np.arange(len(layers))
        return Costs(self.executed[rows, layers - 1], self.paper[rows, layers - 1])


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


def layer_cost(shape: EncoderShape, layer: int, n: Counts, m: Counts) -> LayerCost:
    """Count one layer in the plain form over texts of n tokens, m of which it updates. n, m: (texts,)."""
    # A text with no active token left costs nothing: nobody reads its keys and values.
    n = np.where(m > 0, n, 0)
    d, times = shape.width, shape.blocks_per_layer
    attention = shape.attention(layer)
    pairs = int((m * keys_read(shape, layer, n)).sum())
    return LayerCost(
        layer=layer,
        active=int(m.sum()),
        projections=times * int((2 * m + 2 * n).sum()) * d * attention.inner,
        attention=times * 2 * pairs * attention.inner,
        softmax=times * 2 * pairs * attention.heads,
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


def absorbing_saves(projected: Any, active: Any, read: Any, sizes: AttentionSizes) -> Any:
    """Return how much cheaper the absorbed form of a layer is than the plain one; it pays where that is positive.

    projected: tokens that the plain form projects to keys and values; active: tokens that the layer updates; read:
    pairs of query and key. Numbers, or arrays with one entry per text.
    """
    plain = 2 * projected * sizes.width * sizes.inner + 2 * read * sizes.inner
    absorbed = FOLD_PRICE * 2 * active * sizes.width * sizes.inner + SCORE_PRICE * 2 * read * sizes.width * sizes.heads
    return plain - absorbed


def paper_by_layer(shape: EncoderShape, n: Counts, m: Counts) -> Counts:
    """Count each layer of each text in the plain form, as the paper does. Returns (texts, layers).

    n: (texts,) tokens; m: (texts, layers + 1) tokens that each layer updates, entry 0 being all of them.
    """
    d = shape.width
    columns = []
    for layer in range(1, m.shape[1]):
        active = m[:, layer]
        alive = np.where(active > 0, n, 0)
        sizes = shape.attention(layer)
        a, h = sizes.inner, sizes.heads
        rows = active * (2 * d * a + 4 * d + feed_forward_macs(shape))
        columns.append(rows + 2 * alive * d * a + 2 * active * keys_read(shape, layer, alive) * (a + h))
    return shape.blocks_per_layer * np.stack(columns, axis=1)


def executed_macs(shape: EncoderShape, n: Counts, m: Counts, reads_first_row: bool) -> int:
    """Count all layers of all texts as the engine runs them; see `executed_by_layer`."""
    return int(executed_by_layer(shape, n, m, reads_first_row).sum())


def executed_by_layer(shape: EncoderShape, n: Counts, m: Counts, reads_first_row: bool) -> Counts:
    """Count each layer of each text as the engine runs that text on its own on a CPU. Returns (texts, layers).

    That is the cheaper form of attention, without rows that are not read, the first layer's projections looked up where
    the family allows it (of types that were met before).

    n: (texts,) tokens; m: (texts, layers + 1) tokens that each layer updates, entry 0 being all of them.
    """
    if reads_first_row and shape.blocks_per_layer == 1:
        # Of the last layer only the first token is read, if it gets that far.
        m = np.concatenate([m[:, :-1], np.minimum(m[:, -1:], 1)], axis=1)
    d = shape.width
    columns = []
    for layer in range(1, m.shape[1]):
        active = m[:, layer]
        alive = np.where(active > 0, n, 0)
        sizes = shape.attention(layer)
        a, h = sizes.inner, sizes.heads
        # Layers that share their weights project again only what the layer before has changed.
        projected = np.where(active > 0, m[:, layer - 1], 0) if shape.shares_with_previous(layer) else alive
        looked_up = shape.looked_up and layer == 1
        if looked_up:
            projected = np.zeros_like(alive)
        absorbed = (absorbing_saves(projected, active, alive * active, sizes) > 0) & shape.absorbable
        keys_and_values = np.where(absorbed, 2 * active, 2 * projected) * d * a
        read = keys_read(shape, layer, alive) * active * np.where(absorbed, 2 * h * d + 2 * h, 2 * a + 2 * h)
        query_and_output = (1 if looked_up else 2) * d * a
        rows = active * (query_and_output + 4 * d + feed_forward_macs(shape))
        columns.append(keys_and_values + read + rows)
    return shape.blocks_per_layer * np.stack(columns, axis=1)
