"""Multiply-accumulates of one round of a baseline, by the cost model of docs/design.md: embeddings and heads free.

Padded baselines compute their padding, so it is counted: utilisation says how busy the processor is, not how usefully.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hashee.bench.batches import TokenizedTexts
from hashee.cost.macs import dense_macs, layer_cost
from hashee.families.adapters import adapter_for
from hashee.hf.flops import count_flops
from hashee.tables.table import ExitTable

# A backward pass computes a gradient for the inputs and one for the weights of every product.
TRAINING = 3


@dataclass(frozen=True)
class Work:
    """What a baseline runs in one round."""

    config: Any
    """Of the dense model."""
    depth: int
    tokens: TokenizedTexts
    batches: Sequence[Sequence[int]]
    """Indices of the texts of every batch."""
    table: ExitTable


def padded(work: Work) -> int:
    """Every position of every padded batch goes through every layer."""
    shape = adapter_for(work.config).shape(work.config)
    total = 0
    for indices in work.batches:
        length = max(len(work.tokens.ids[index]) for index in indices)
        n = np.full(len(indices), length, dtype=np.int64)
        total += dense_macs(shape, work.depth, n)
    return total


def authors(work: Work) -> int:
    """Queries are padded to the example with most active tokens, keys to the longest example."""
    shape = adapter_for(work.config).shape(work.config)
    exit_layers = work.table.exit_layers.numpy()
    total = 0
    for indices in work.batches:
        exits = [exit_layers[np.asarray(work.tokens.ids[index])] for index in indices]
        n = np.full(len(indices), max(map(len, exits)), dtype=np.int64)
        for layer in range(1, work.depth + 1):
            most_active = max(int((row >= layer).sum()) for row in exits)
            total += layer_cost(shape, layer, n, np.full_like(n, most_active)).macs
    return total


def packed(work: Work) -> int:
    """What the packed engine runs of every batch with exits."""
    return _packed(work, work.table)


def packed_full_depth(work: Work) -> int:
    """What the packed engine runs of every batch when nothing exits."""
    return _packed(work, ExitTable.never(work.config.vocab_size, work.depth))


def packed_plain(work: Work) -> int:
    """What the packed engine runs of every batch with exits when gradients are wanted: the plain form of all layers."""
    config = copy.deepcopy(work.config)
    config.num_hidden_layers = work.depth
    return sum(
        count_flops(config, [list(work.tokens.ids[index]) for index in indices], work.table).paper_macs
        for indices in work.batches
    )


def _packed(work: Work, table: ExitTable) -> int:
    config = copy.deepcopy(work.config)
    config.num_hidden_layers = work.depth
    return sum(
        # The classifier reads the first position only.
        count_flops(
            config, [list(work.tokens.ids[index]) for index in indices], table, reads_first_row=True
        ).executed_macs
        for indices in work.batches
    )


COSTS: dict[str, Callable[[Work], int]] = {
    "padded": padded,
    "authors": authors,
    "packed": packed,
    "packed full depth": packed_full_depth,
    "padded training": lambda work: TRAINING * padded(work),
    "packed training": lambda work: TRAINING * packed_plain(work),
}
"""Ways to count, by the name that a baseline gives."""
