"""What writing a text costs, in multiply-accumulates on plain arrays: the steps of a decoder whose tokens exit."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hashee.cost.macs import Costs, Counts


@dataclass(frozen=True)
class DecoderShape:
    """The numbers that set the cost of a decoder."""

    layers: int
    width: int
    heads: int
    inner: int
    vocabulary: int
    """Tokens that the head scores in every step."""
    attends_to_source: bool = True
    """Whether every layer attends to the states of an encoder too."""
    head_width: int | None = None
    """Width of a head where that is not the width of the states divided by the heads."""
    key_value_heads: int | None = None
    """Heads of keys and values where several heads of queries share one (grouped-query attention)."""
    gated: bool = False
    """Whether the feed-forward has a gate as wide as its inner width."""

    @property
    def attention_width(self) -> int:
        """Width of the queries of all heads together."""
        return self.heads * (self.width // self.heads if self.head_width is None else self.head_width)

    @property
    def key_width(self) -> int:
        """Width of the keys, and of the values, of all heads together."""
        return self.attention_width * (self.key_value_heads or self.heads) // self.heads


@dataclass(frozen=True)
class GenerationCosts:
    """Multiply-accumulates of some texts that were written, (texts,) each."""

    encoder: Costs
    decoder: Costs
    head: Counts
    """Scoring the vocabulary once for each step, which no exit saves; by convention not part of the decoder."""

    @property
    def total(self) -> Costs:
        """Encoder and decoder together; as in the paper, without the head."""
        return Costs(self.encoder.executed + self.decoder.executed, self.encoder.paper + self.decoder.paper)


def decoder_costs(shape: DecoderShape, exits: Sequence[Counts], sources: Counts) -> Costs:
    """Count what each text costs in a decoder that runs it step by step with a cache. Returns (texts,) each.

    exits: for each text the exit layers of the tokens that the decoder read: (positions,). sources: (texts,) tokens of
    the source, whose keys and values each layer projects once. A position that has exited costs a layer its keys and
    values alone; the paper's count, as for encoders, leaves those out where no later token of the text would read them
    in that layer, while every step runs them.
    """
    executed, paper = np.zeros(len(exits), dtype=np.int64), np.zeros(len(exits), dtype=np.int64)
    for text, (layers, source) in enumerate(zip(exits, sources.tolist(), strict=True)):
        for layer in range(1, shape.layers + 1):
            active = np.flatnonzero(layers >= layer)
            updates = _updates(shape, active, source)
            keys_and_values = 2 * len(layers) * shape.width * shape.key_width
            executed[text] += updates + keys_and_values
            paper[text] += updates + (keys_and_values if len(active) else 0)
    return Costs(executed, paper)


def _updates(shape: DecoderShape, active: Counts, source: int) -> int:
    """Count the updates of some positions in one layer. active: (positions,) their indices; source: tokens."""
    number, d, a, h = len(active), shape.width, shape.attention_width, shape.heads
    # A position reads itself and all before it.
    pairs = int((active + 1).sum())
    macs = 2 * number * d * a + 2 * pairs * (a + h)
    norms = 2
    if shape.attends_to_source and number:
        macs += 2 * source * d * a + 2 * number * d * a + 2 * number * source * (a + h)
        norms = 3
    feed_forward = (3 if shape.gated else 2) * d * shape.inner
    return macs + number * (2 * norms * d + feed_forward)


def head_costs(shape: DecoderShape, exits: Sequence[Counts]) -> Counts:
    """Count the scores of the vocabulary, once for each position: (texts,)."""
    return np.asarray([len(layers) * shape.width * shape.vocabulary for layers in exits], dtype=np.int64)
