"""hashee.engine.block and hashee.engine.attention as ONNX nodes: one layer on the rows that it updates."""

from dataclasses import dataclass

import torch
from torch import nn

from hashee.engine.block import Block
from hashee.export.activations import activate
from hashee.export.graph import Graph, as_linear
from hashee.export.packing import Packing


@dataclass(frozen=True)
class Readers:
    """The rows that a layer updates and where they sit; names of values.

    Without seats, every sequence has one reader and they come in order.
    """

    number: str
    """(1,) how many rows."""
    key_seats: str
    """(sequences, longest) packed rows that the readers of each sequence see."""
    mask: str
    """(sequences, 1, longest) what empty seats add to the scores."""
    cells: str
    """(1,) seats of queries x seats of keys."""
    rows: str | None = None
    """(readers,) their packed rows; the first ones if there is none here."""
    query_seats: str | None = None
    """(sequences, width) number of the reader in each seat."""
    unseat: str | None = None
    """(readers,) place of each reader in the flattened query seats."""
    bias: str | None = None
    """(sequences, width, heads, longest) what relative positions add to the scores."""

    def pick(self, graph: Graph, value: str) -> str:
        """Take the readers' rows out of a value that has one for each token."""
        return graph.rows(value, graph.ints([0]), self.number) if self.rows is None else graph.take(value, self.rows)


def active_rows(graph: Graph, packing: Packing, layer: int, bias: str | None) -> Readers:
    """Return the readers of a layer, from 1: the tokens that have not exited, which are the first packed rows."""
    g = graph
    active, width = packing.computed[layer - 1], packing.widths[layer - 1]
    start, last = g.ints([0]), g.node("Sub", active, g.ints([1]))
    sequence, rank = (g.rows(value, start, active) for value in (packing.sequence, packing.rank))
    seated = g.node("Mul", g.node("Mul", packing.batch, packing.longest), width)
    return Readers(
        number=active,
        key_seats=packing.seats,
        mask=packing.mask,
        cells=seated,
        # Seats past a sequence's last active token hold rows that are not among the queries; any will do.
        query_seats=g.node("Min", g.rows(packing.seats, start, width, axis=1), last),
        unseat=g.node("Add", g.node("Mul", sequence, width), rank),
        bias=None if bias is None else g.rows(bias, start, width, axis=1),
    )


def one_row_each(graph: Graph, packing: Packing, rows: str, bias: str | None) -> Readers:
    """Return the readers of a layer of which one row is wanted from every sequence: rows is (batch,), packed."""
    g = graph
    if bias is not None:
        # Seats of a sequence are in the order of its ranks, so a reader's rank is its row of the bias.
        places = (g.count(packing.batch), g.take(packing.rank, rows))
        columns = [g.node("Unsqueeze", value, g.ints([1])) for value in places]
        bias = g.node("GatherND", bias, g.node("Concat", *columns, axis=1))
        bias = g.node("Unsqueeze", bias, g.ints([1]))
    number = g.node("Shape", rows)
    return Readers(
        number=number,
        rows=rows,
        key_seats=packing.seats,
        mask=packing.mask,
        cells=g.node("Mul", number, packing.longest),
        bias=bias,
    )


def update(graph: Graph, block: Block, hidden: str, packing: Packing, readers: Readers) -> str:
    """Return the new states of a layer's readers: (tokens, width) -> (readers, width)."""
    g = graph
    old = readers.pick(g, hidden)
    # Keys need the norm too in pre-norm models, so it runs over the frozen rows as well.
    source = g.norm(hidden, block.attention_norm) if block.pre_norm else hidden
    attention = Attention.of(block)
    query = attention.project_query(g, readers.pick(g, source) if block.pre_norm else old)
    attended = g.node("Add", attention.project_output(g, attention.read(g, query, source, packing, readers)), old)
    if not block.pre_norm:
        attended = g.norm(attended, block.attention_norm)

    source = g.norm(attended, block.feed_forward_norm) if block.pre_norm else attended
    part = block.feed_forward
    inner = activate(g, g.linear(source, part.expand), part.activation)
    updated = g.node("Add", g.linear(inner, part.contract), attended)
    return updated if block.pre_norm else g.norm(updated, block.feed_forward_norm)


def freeze(graph: Graph, updated: str, hidden: str, active: str) -> str:
    """Put the states of the tokens that have exited after the new ones: (tokens, width)."""
    end = graph.ints([torch.iinfo(torch.int64).max])
    kept = graph.rows(updated, graph.ints([0]), active)
    return graph.node("Concat", kept, graph.rows(hidden, active, end), axis=0)


@dataclass(frozen=True)
class Attention:
    """One layer's attention with what does not depend on the text folded into its weights.

    The scale goes into the query projection. The key bias is the same for all keys, so the softmax cancels it; the
    value bias passes through the weights, which sum to one, so the output projection adds it.
    """

    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    output: nn.Linear
    heads: int
    scale: float

    @classmethod
    def of(cls, block: Block) -> "Attention":
        """Take the projections of a block."""
        part = block.attention
        query, key, value, output = map(as_linear, (*part.projections.modules, part.output))
        return cls(query, key, value, output, part.heads, part.scale)

    @property
    def width(self) -> int:
        """Width of the states that keys are made of."""
        return self.key.in_features

    @property
    def head_width(self) -> int:
        """Width of one head."""
        return self.key.out_features // self.heads

    def project_query(self, graph: Graph, rows: str) -> str:
        """Return scaled queries: (readers, heads * head width)."""
        scaled = [
            graph.weight(parameter.detach().float() * self.scale, "query", parameter)
            for parameter in (self.query.weight, self.query.bias)
            if parameter is not None
        ]
        return graph.node("Gemm", rows, *scaled, transB=1)

    def project_output(self, graph: Graph, context: str) -> str:
        """Return what attention adds to the readers' states: (readers, width)."""
        weight = self.output.weight.detach().double()
        bias = weight.new_zeros(weight.shape[0])
        bias = bias if self.output.bias is None else bias + self.output.bias.detach().double()
        bias = bias if self.value.bias is None else bias + weight @ self.value.bias.detach().double()
        folded = graph.weight(bias, "output_bias", self.output.weight, self.value.weight)
        return graph.node("Gemm", context, graph.weight(self.output.weight, "weight"), folded, transB=1)

    def read(self, graph: Graph, query: str, source: str, packing: Packing, readers: Readers) -> str:
        """Let each reader read its sequence, in the form that takes fewer operations for this batch.

        query: (readers, width); source: (tokens, width). Returns (readers, heads * head width).
        """
        # Both forms share a term; what is left is readers * width + (heads - 1) * cells against tokens * width.
        g = graph
        extra = g.node("Mul", readers.cells, g.ints(self.heads - 1))
        saved = g.node("Mul", g.node("Sub", packing.tokens, readers.number), g.ints(self.width))
        fewer = g.node("Squeeze", g.node("Less", extra, saved))
        absorbed, plain = Graph(g.opset, outer=g), Graph(g.opset, outer=g)
        return g.choose(
            fewer,
            (absorbed, self._absorbed(absorbed, query, source, readers)),
            (plain, self._plain(plain, query, source, readers)),
        )

    def _plain(self, g: Graph, query: str, source: str, readers: Readers) -> str:
        """Project keys and values of all tokens."""
        heads, head_width = self.heads, self.head_width
        both = torch.cat([self.key.weight.detach(), self.value.weight.detach()]).t()
        projected = g.node("MatMul", source, g.weight(both, "key_value", self.key.weight, self.value.weight))
        seated = g.shape(g.take(projected, readers.key_seats), [0, 0, 2 * heads, head_width])
        keys, values = g.split(seated, [heads, heads], axis=2)
        if readers.query_seats is None:
            asked = g.shape(query, [0, heads, 1, head_width])
        else:
            asked = g.shape(g.take(query, readers.query_seats), [0, 0, heads, head_width])
            asked = g.node("Transpose", asked, perm=[0, 2, 1, 3])
        scores = g.node("MatMul", asked, g.node("Transpose", keys, perm=[0, 2, 3, 1]))
        scores = g.node("Add", scores, g.node("Unsqueeze", readers.mask, g.ints([1])))
        if readers.bias is not None:
            scores = g.node("Add", scores, g.node("Transpose", readers.bias, perm=[0, 2, 1, 3]))
        shares = g.node("Softmax", scores, axis=-1)
        context = g.node("MatMul", shares, g.node("Transpose", values, perm=[0, 2, 1, 3]))
        context = g.shape(g.node("Transpose", context, perm=[0, 2, 1, 3]), [-1, heads * head_width])
        return context if readers.unseat is None else g.take(context, readers.unseat)

    def _absorbed(self, g: Graph, query: str, source: str, readers: Readers) -> str:
        """Fold the key and value projections into the query side: q K' = (q W_K) H', A V = (A H) W_V."""
        heads, head_width, width = self.heads, self.head_width, self.width
        key = g.weight(self.key.weight.detach().view(heads, head_width, width), "absorbed_key", self.key.weight)
        by_column = self.value.weight.detach().view(heads, head_width, width).transpose(1, 2)
        value = g.weight(by_column, "absorbed_value", self.value.weight)
        by_head = g.node("Transpose", g.shape(query, [0, heads, head_width]), perm=[1, 0, 2])
        asked = g.node("Transpose", g.node("MatMul", by_head, key), perm=[1, 0, 2])
        if readers.query_seats is not None:
            asked = g.shape(g.take(asked, readers.query_seats), [0, -1, width])
        seated = g.take(source, readers.key_seats)
        scores = g.node("MatMul", asked, g.node("Transpose", seated, perm=[0, 2, 1]))
        scores = g.node("Add", scores, readers.mask)
        if readers.bias is not None:
            laid_out = g.node("Reshape", readers.bias, g.node("Shape", scores))
            scores = g.node("Add", scores, laid_out)
        read = g.shape(g.node("MatMul", g.node("Softmax", scores, axis=-1), seated), [-1, heads, width])
        read = read if readers.unseat is None else g.take(read, readers.unseat)
        by_head = g.node("MatMul", g.node("Transpose", read, perm=[1, 0, 2]), value)
        return g.shape(g.node("Transpose", by_head, perm=[1, 0, 2]), [-1, heads * head_width])
