"""hashee.engine.plan as ONNX nodes: from ids and mask to the packed order, computed inside the graph."""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from hashee.export.graph import Graph

MASKED = -1e30
"""Added to the score of an empty slot; finite, so that a sequence without tokens gives no NaN."""

EXIT_TABLE = "exit_table"
"""Start of the name of the constant with the exit layer of every token id."""


@dataclass(frozen=True)
class Packing:
    """Names of the values that hold a batch's plan; see hashee.engine.plan for the idea."""

    batch: str
    """() number of sequences, empty ones included."""
    length: str
    """() length of the caller's rows."""
    tokens: str
    """(1,) number of packed rows: the real tokens or, if there are none, one."""
    longest: str
    """() most tokens in any one sequence."""
    rows: str
    """(tokens,) index of each packed row in the flattened (batch * length) input."""
    ids: str
    """(batch, length) token ids, zero at padding."""
    sequence: str
    """(tokens,) sequence of each packed row."""
    rank: str
    """(tokens,) slot of each packed row within its sequence."""
    slots: str
    """(batch, longest) packed row in each slot; empty slots hold row 0."""
    mask: str
    """(batch, 1, longest) added to the scores: 0, or MASKED for empty slots."""
    row_of_position: str
    """(batch * length,) packed row of each position; for padding it is the number of tokens."""
    active: tuple[str, ...]
    """(1,) for each layer from 1: rows that it updates."""
    widths: tuple[str, ...]
    """(1,) for each layer from 1: most rows that it computes in any one sequence."""
    computed: tuple[str, ...]
    """(1,) for each layer from 1: rows that it computes, which are the active ones or, if there are none, one."""


def pack_batch(graph: Graph, exit_layers: Tensor, num_layers: int) -> Packing:
    """Order the real tokens of `input_ids` by falling exit layer.

    exit_layers: (vocabulary,), a constant of the graph.
    """
    g = graph
    shape = g.node("Shape", "input_ids")
    batch = g.gather(shape, g.ints(0))
    length = g.gather(shape, g.ints(1))
    given = g.node("Cast", "attention_mask", to=g.onnx.TensorProto.BOOL)
    mask = _never_empty(g, given)
    source = g.reshape(g.node("NonZero", g.reshape(mask, [-1])), [-1])
    tokens = g.node("Shape", source)
    numbers = g.arange(g.node("Squeeze", tokens))

    # Padding may hold any id, so only real tokens are looked up.
    ids = g.node("Where", mask, "input_ids", g.ints(0))
    grid = g.node("Where", mask, g.gather(g.weight(exit_layers, EXIT_TABLE), ids), g.ints(-1))
    levels = g.ints(list(range(num_layers + 1)))
    reaches = g.node("GreaterOrEqual", g.node("Unsqueeze", grid, g.ints([2])), levels)
    active_by_sequence = g.sum(g.node("Cast", reaches, to=g.onnx.TensorProto.INT64), 1)
    _, *active = g.split(g.sum(active_by_sequence, 0), [1] * (num_layers + 1), axis=0)
    # Runtimes do not handle empty tensors well: a layer without active rows computes one row, which is dropped.
    widths = g.node("Max", g.max(active_by_sequence, 0), g.ints([1]))
    most_tokens, *widths_by_layer = g.split(widths, [1] * (num_layers + 1), axis=0)

    # The sort keys are all different, so the order does not depend on how a runtime breaks ties.
    exits = g.gather(g.reshape(grid, [-1]), source)
    order = _sorted(g, g.node("Sub", g.node("Mul", exits, tokens), numbers), tokens, falling=True)
    rows = g.gather(source, order)
    sequence = g.node("Div", rows, length)
    by_sequence = _sorted(g, g.node("Add", g.node("Mul", sequence, tokens), numbers), tokens, falling=False)

    counts = g.reshape(g.slice(active_by_sequence, g.ints([0]), g.ints([1]), axis=1), [-1])
    first = g.node("CumSum", counts, g.ints(0), exclusive=1)
    offset = g.node("Sub", numbers, g.gather(first, g.gather(sequence, by_sequence)))
    rank = g.scatter(tokens, by_sequence, offset, np.zeros(1, np.int64))
    slot = g.node("Add", g.node("Mul", sequence, most_tokens), rank)
    slots = g.scatter(g.node("Mul", batch, most_tokens), slot, numbers, np.zeros(1, np.int64))
    by_row = g.node("Concat", g.reshape(batch, [1]), most_tokens, axis=0)

    longest = g.node("Squeeze", most_tokens)
    occupied = g.node("Less", g.arange(longest), g.node("Unsqueeze", counts, g.ints([1])))
    penalty = g.node("Where", occupied, g.floats(0.0), g.floats(MASKED))
    missing = g.node("Expand", tokens, g.node("Shape", g.reshape(given, [-1])))
    row_of_position = g.node("ScatterElements", missing, rows, numbers, axis=0)
    return Packing(
        batch=batch,
        length=length,
        tokens=tokens,
        longest=longest,
        rows=rows,
        ids=ids,
        sequence=sequence,
        rank=rank,
        slots=g.node("Reshape", slots, by_row),
        mask=g.node("Unsqueeze", penalty, g.ints([1])),
        row_of_position=g.node("Where", g.reshape(given, [-1]), row_of_position, missing),
        active=tuple(active),
        widths=tuple(widths_by_layer),
        computed=tuple(g.node("Max", number, g.ints([1])) for number in active),
    )


def with_padding_row(graph: Graph, hidden: str, width: int) -> str:
    """Append a row of zeros for padding: (tokens, width) -> (tokens + 1, width)."""
    zeros = graph.array(np.zeros((1, width), np.float32))
    return graph.node("Concat", hidden, zeros, axis=0)


def unpack(graph: Graph, rows: str, packing: Packing, name: str) -> str:
    """Return rows in the caller's order: (tokens + 1, width) -> (batch, length, width)."""
    shape = graph.node("Concat", graph.node("Shape", "input_ids"), graph.ints([-1]), axis=0)
    return graph.node("Reshape", graph.gather(rows, packing.row_of_position), shape, name=name)


def _never_empty(graph: Graph, mask: str) -> str:
    """Mark the first position of the batch as real if no position is, so that there is always a row to compute."""
    g = graph
    flat = g.reshape(mask, [-1])
    any_real = g.max(g.node("Cast", flat, to=g.onnx.TensorProto.INT64), 0)
    numbers = g.arange(g.node("Squeeze", g.node("Shape", flat)))
    is_added = g.node("Equal", numbers, g.node("Neg", any_real))
    return g.node("Reshape", g.node("Or", flat, is_added), g.node("Shape", mask))


def _sorted(graph: Graph, keys: str, tokens: str, falling: bool) -> str:
    """Return the indices that sort the keys."""
    names = (graph.fresh("sorted"), graph.fresh("order"))
    graph.nodes_of("TopK", keys, tokens, names=names, axis=0, largest=int(falling), sorted=1)
    return names[1]
