"""Multiply-accumulates of an encoder, counted on plain arrays of lengths; the one cost model of the project."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]

# Time of a multiply-accumulate in the absorbed form, relative to one in a large projection: its products are many and
# small. Both factors are measured.
FOLD_COST = 1.3
SCORE_COST = 1.4

SMALLEST_BLOCK = 16
"""Tokens of a block of local attention, at least."""


def block_length(window: int) -> int:
    """Return how many neighbouring tokens form a block: longer blocks mean larger products but more masked pairs."""
    return max(window, SMALLEST_BLOCK)


def band_length(lengths: Any, window: int) -> Any:
    """Return the number of keys that each query is multiplied with. lengths: tokens of each text, number or array."""
    return np.minimum(lengths, block_length(window) + 2 * window)


@dataclass(frozen=True)
class AttentionSizes:
    """The numbers that set the cost of one layer's attention."""

    width: int
    """Of the states."""
    heads: int
    inner: int
    """Width of queries, all heads together; less than that of the states where heads were pruned."""
    shared: int
    """Width of keys, and of values; less than that of queries where several heads of these share one."""


@dataclass(frozen=True)
class DistanceShape:
    """What sets the cost of scores between contents and relative positions (DeBERTa)."""

    by_length: tuple[int, ...]
    """How many embeddings of distances occur in a text of 0, 1, 2, ... tokens; longer texts have the last number."""
    of_queries: bool
    """Whether queries are multiplied with keys of distances (c2p)."""
    of_keys: bool
    """Whether keys are multiplied with queries of distances (p2c)."""

    def distances(self, n: Counts) -> Counts:
        """Return how many embeddings of distances occur in texts of n tokens. n: (texts,)"""
        return np.asarray(self.by_length, dtype=np.int64)[np.minimum(n, len(self.by_length) - 1)]


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
    """Whether inference looks up the first layer's projections (`hashee.engine.first_layer`)."""

    windows: tuple[int | None, ...] = ()
    """Window of each layer's attention, in tokens to either side; None, and layers not listed: the whole text."""
    gated: bool = False
    """Whether the feed-forward has a gate as wide as its inner width (GLU)."""
    kept_heads: tuple[int, ...] = ()
    """Heads that pruning has left in each layer; what is not listed: all of them."""
    head_width: int | None = None
    """Width of a head where that is not the width of the states divided by the heads (T5)."""
    key_value_heads: int | None = None
    """Heads of keys and values where several heads of queries share one (EuroBERT); None: as many as of queries."""
    distances: DistanceShape | None = None
    """Scores between contents and relative positions, if there are any."""

    def attention(self, layer: int) -> AttentionSizes:
        """Return the sizes of the attention of a layer, from 1."""
        heads = self.kept_heads[layer - 1] if 0 < layer <= len(self.kept_heads) else self.heads
        head_width = self.width // self.heads if self.head_width is None else self.head_width
        shared = heads if self.key_value_heads is None else self.key_value_heads
        return AttentionSizes(self.width, heads, heads * head_width, shared * head_width)

    def window(self, layer: int) -> int | None:
        """Return the window of a layer, from 1, or None."""
        return self.windows[layer - 1] if 0 < layer <= len(self.windows) else None

    def shares_with_previous(self, layer: int) -> bool:
        """Return whether a layer, from 1, has the previous one's weights; frozen tokens then keep keys and values."""
        return layer > 1 and int((layer - 1) / self.layers_per_group) == int((layer - 2) / self.layers_per_group)


BERT_BASE = EncoderShape(layers=12, width=768, heads=12, inner=3072)
"""The paper's speed-ups are relative to this shape."""


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
    """Multiply-accumulates of one layer over all texts, by operation."""

    layer: int
    active: int
    """Tokens that the layer updates."""
    projections: int
    """Query, key, value and output projections, and those of relative positions."""
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
        """Those in matrix products, which `torch.utils.flop_counter` counts (as two FLOPs each)."""
        return self.projections + self.attention + self.feed_forward


def layer_cost(shape: EncoderShape, layer: int, n: Counts, m: Counts) -> LayerCost:
    """Count one layer in the plain form over texts of n tokens, m of which it updates. n, m: (texts,)."""
    # A text without an active token costs nothing: no query attends to its keys and values.
    n = np.where(m > 0, n, 0)
    d, times = shape.width, shape.blocks_per_layer
    attention = shape.attention(layer)
    pairs = int((m * keys_read(shape, layer, n)).sum())
    projected = (2 * m * attention.inner + 2 * n * attention.shared) * d
    of_distances = distance_macs(shape, layer, n, m)
    return LayerCost(
        layer=layer,
        active=int(m.sum()),
        projections=times * int((projected + of_distances.projections).sum()),
        attention=times * (2 * pairs * attention.inner + int(of_distances.scores.sum())),
        softmax=times * 2 * pairs * attention.heads,
        norms=times * 4 * int(m.sum()) * d,
        feed_forward=times * int(m.sum()) * feed_forward_macs(shape),
    )


def dense_macs(shape: EncoderShape, layers: int, n: Counts) -> int:
    """Count texts of n tokens in the first layers of a model without exits. n: (texts,)"""
    return sum(layer_cost(shape, layer, n, n).macs for layer in range(1, layers + 1))


def keys_read(shape: EncoderShape, layer: int, n: Counts) -> Counts:
    """Return the keys that each query of a layer is multiplied with, in texts of n tokens. n: (texts,)"""
    window = shape.window(layer)
    return n if window is None else np.asarray(band_length(n, window), dtype=np.int64)


@dataclass(frozen=True)
class DistanceMacs:
    """Multiply-accumulates of the relative positions of each text in one layer; (texts,) each."""

    projections: Counts
    scores: Counts

    @property
    def both(self) -> Counts:
        """All of them."""
        return self.projections + self.scores


def distance_macs(shape: EncoderShape, layer: int, n: Counts, m: Counts) -> DistanceMacs:
    """Count what a layer multiplies with relative positions, in texts of n tokens, m of them active. n, m: (texts,).

    Distances are projected once for each text, those alone that occur in it, and n is 0 where none is needed.
    """
    part, sizes = shape.distances, shape.attention(layer)
    if part is None:
        return DistanceMacs(np.zeros_like(n), np.zeros_like(n))
    distances = part.distances(n)
    return DistanceMacs(
        projections=(part.of_queries + part.of_keys) * distances * sizes.width * sizes.inner,
        scores=(part.of_queries * m + part.of_keys * n) * distances * sizes.inner,
    )


def feed_forward_macs(shape: EncoderShape) -> int:
    """Return the multiply-accumulates of one row in the feed-forward's products; a gate is one product more."""
    return (3 if shape.gated else 2) * shape.width * shape.inner


def absorbing_saves(projected: Any, active: Any, pairs: Any, sizes: AttentionSizes, product_cost: float = 1.0) -> Any:
    """Return how much cheaper the absorbed form of a layer is than the plain one; negative if it is dearer.

    projected: tokens that the plain form projects to keys and values; active: tokens that the layer updates; pairs:
    of query and key. Numbers, or arrays with one entry per text. product_cost: time of a multiply-accumulate with a
    weight, relative to one in float32.
    """
    plain = product_cost * 2 * projected * sizes.width * sizes.inner + 2 * pairs * sizes.inner
    absorbed = product_cost * FOLD_COST * 2 * active * sizes.width * sizes.inner
    absorbed = absorbed + SCORE_COST * 2 * pairs * sizes.width * sizes.heads
    return plain - absorbed


def paper_by_layer(shape: EncoderShape, n: Counts, m: Counts) -> Counts:
    """Count each layer of each text in the plain form, as the paper does. Returns (texts, layers).

    n: (texts,) tokens; m: (texts, layers + 1) tokens that each layer updates, entry 0 being all of them.
    """
    d = shape.width
    columns = []
    for layer in range(1, m.shape[1]):
        active = m[:, layer]
        keys = np.where(active > 0, n, 0)
        sizes = shape.attention(layer)
        a, h = sizes.inner, sizes.heads
        rows = active * (2 * d * a + 4 * d + feed_forward_macs(shape))
        attention = 2 * active * keys_read(shape, layer, keys) * (a + h)
        distances = distance_macs(shape, layer, keys, active).both
        columns.append(rows + 2 * keys * d * sizes.shared + attention + distances)
    return shape.blocks_per_layer * np.stack(columns, axis=1)


def executed_macs(shape: EncoderShape, n: Counts, m: Counts, reads_first_row: bool) -> int:
    """Count all layers of all texts as the engine runs them; see `executed_by_layer`."""
    return int(executed_by_layer(shape, n, m, reads_first_row).sum())


def executed_by_layer(shape: EncoderShape, n: Counts, m: Counts, reads_first_row: bool) -> Counts:
    """Count each layer of each text as the engine runs that text on its own on a CPU. Returns (texts, layers).

    That is the cheaper form of attention, without rows that are not read, the first layer's projections looked up where
    the family allows it (of cached token types), and those of relative positions kept from text to text.

    n: (texts,) tokens; m: (texts, layers + 1) tokens that each layer updates, entry 0 being all of them.
    """
    if reads_first_row and shape.blocks_per_layer == 1:
        # The last layer updates the first token alone, if that has not exited.
        m = np.concatenate([m[:, :-1], np.minimum(m[:, -1:], 1)], axis=1)
    d = shape.width
    columns = []
    for layer in range(1, m.shape[1]):
        active = m[:, layer]
        keys = np.where(active > 0, n, 0)
        sizes = shape.attention(layer)
        a, h = sizes.inner, sizes.heads
        # A layer that shares its weights projects only the tokens that the layer before has changed.
        projected = np.where(active > 0, m[:, layer - 1], 0) if shape.shares_with_previous(layer) else keys
        looked_up = shape.looked_up and layer == 1
        if looked_up:
            projected = np.zeros_like(keys)
        absorbed = (absorbing_saves(projected, active, keys * active, sizes) > 0) & shape.absorbable
        keys_and_values = np.where(absorbed, 2 * active * a, 2 * projected * sizes.shared) * d
        attention = keys_read(shape, layer, keys) * active * np.where(absorbed, 2 * h * d + 2 * h, 2 * a + 2 * h)
        query_and_output = (1 if looked_up else 2) * d * a
        other = active * (query_and_output + 4 * d + feed_forward_macs(shape))
        columns.append(keys_and_values + attention + other + distance_macs(shape, layer, keys, active).scores)
    return shape.blocks_per_layer * np.stack(columns, axis=1)
