"""hashee.engine.plan as ONNX nodes: from ids and mask to the packed order, all decided inside the graph."""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from hashee.export.graph import Graph

HIDDEN = -1e30
"""Added to the score of an empty seat; finite, so that a sequence without tokens gives numbers that nobody reads."""


EXIT_TABLE = "exit_table"
"""What the name of the constant with the exit layer of every token id begins with."""


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
    """(tokens,) place of each packed row in the flattened (batch * length) input."""
    ids: str
    """(batch, length) token ids, zero at padding."""
    sequence: str
    """(tokens,) sequence of each packed row."""
    rank: str
    """(tokens,) seat of each packed row within its sequence."""
    seats: str
    """(batch, longest) packed row in each seat; empty seats hold row 0."""
    mask: str
    """(batch, 1, longest) what empty seats add to the scores."""
    place: str
    """(batch * length,) packed row of each position; padding has the number of tokens."""
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
    batch = g.take(shape, g.ints(0))
    length = g.take(shape, g.ints(1))
    given = g.node("Cast", "attention_mask", to=g.onnx.TensorProto.BOOL)
    mask = _never_empty(g, given)
    source = g.shape(g.node("NonZero", g.shape(mask, [-1])), [-1])
    tokens = g.node("Shape", source)
    numbers = g.count(g.node("Squeeze", tokens))

    # Padding may hold any id, so only real tokens are looked up.
    ids = g.node("Where", mask, "input_ids", g.ints(0))
    grid = g.node("Where", mask, g.take(g.weight(exit_layers, EXIT_TABLE), ids), g.ints(-1))
    levels = g.ints(list(range(num_layers + 1)))
    reaches = g.node("GreaterOrEqual", g.node("Unsqueeze", grid, g.ints([2])), levels)
    alive = g.total(g.node("Cast", reaches, to=g.onnx.TensorProto.INT64), 1)
    _, *active = g.split(g.total(alive, 0), [1] * (num_layers + 1), axis=0)
    # Runtimes are not made for values without rows: a layer that has nothing to do computes one row, which is dropped.
    widths = g.node("Max", g.longest(alive, 0), g.ints([1]))
    most, *widths_by_layer = g.split(widths, [1] * (num_layers + 1), axis=0)

    # Keys are all different, so no runtime's way with ties can matter.
    found = g.take(g.shape(grid, [-1]), source)
    order = _sorted(g, g.node("Sub", g.node("Mul", found, tokens), numbers), tokens, falling=True)
    rows = g.take(source, order)
    sequence = g.node("Div", rows, length)
    by_sequence = _sorted(g, g.node("Add", g.node("Mul", sequence, tokens), numbers), tokens, falling=False)

    counts = g.shape(g.rows(alive, g.ints([0]), g.ints([1]), axis=1), [-1])
    first = g.node("CumSum", counts, g.ints(0), exclusive=1)
    offset = g.node("Sub", numbers, g.take(first, g.take(sequence, by_sequence)))
    rank = g.put(tokens, by_sequence, offset, np.zeros(1, np.int64))
    seat = g.node("Add", g.node("Mul", sequence, most), rank)
    seats = g.put(g.node("Mul", batch, most), seat, numbers, np.zeros(1, np.int64))
    by_row = g.node("Concat", g.shape(batch, [1]), most, axis=0)

    longest = g.node("Squeeze", most)
    occupied = g.node("Less", g.count(longest), g.node("Unsqueeze", counts, g.ints([1])))
    penalty = g.node("Where", occupied, g.floats(0.0), g.floats(HIDDEN))
    missing = g.node("Expand", tokens, g.node("Shape", g.shape(given, [-1])))
    place = g.node("ScatterElements", missing, rows, numbers, axis=0)
    return Packing(
        batch=batch,
        length=length,
        tokens=tokens,
        longest=longest,
        rows=rows,
        ids=ids,
        sequence=sequence,
        rank=rank,
        seats=g.node("Reshape", seats, by_row),
        mask=g.node("Unsqueeze", penalty, g.ints([1])),
        place=g.node("Where", g.shape(given, [-1]), place, missing),
        active=tuple(active),
        widths=tuple(widths_by_layer),
        computed=tuple(g.node("Max", number, g.ints([1])) for number in active),
    )


def with_padding_row(graph: Graph, hidden: str, width: int) -> str:
    """Append the row of zeros that stands for padding: (tokens, width) -> (tokens + 1, width)."""
    zeros = graph.array(np.zeros((1, width), np.float32))
    return graph.node("Concat", hidden, zeros, axis=0)


def unpack(graph: Graph, rows: str, packing: Packing, name: str) -> str:
    """Put rows back into the caller's order: (tokens + 1, width) -> (batch, length, width)."""
    by_position = graph.node("Concat", graph.node("Shape", "input_ids"), graph.ints([-1]), axis=0)
    return graph.node("Reshape", graph.take(rows, packing.place), by_position, name=name)


def _never_empty(graph: Graph, mask: str) -> str:
    """Mark the very first position as real if no other is, so that there is always a row to compute."""
    g = graph
    flat = g.shape(mask, [-1])
    some = g.longest(g.node("Cast", flat, to=g.onnx.TensorProto.INT64), 0)
    numbers = g.count(g.node("Squeeze", g.node("Shape", flat)))
    lone = g.node("Equal", numbers, g.node("Neg", some))
    return g.node("Reshape", g.node("Or", flat, lone), g.node("Shape", mask))


def _sorted(graph: Graph, keys: str, tokens: str, falling: bool) -> str:
    """Return the order that sorts keys."""
    names = (graph.fresh("sorted"), graph.fresh("order"))
    graph.nodes_of("TopK", keys, tokens, names=names, axis=0, largest=int(falling), sorted=1)
    return names[1]
