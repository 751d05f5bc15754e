"""hashee.engine.block and hashee.engine.attention as ONNX nodes: one layer on the rows that it updates."""

from dataclasses import dataclass

import torch
from torch import nn

from hashee.engine.adapter import HeadLayers
from hashee.engine.block import Block
from hashee.export.activations import activate, activation_of
from hashee.export.graph import Graph, as_linear
from hashee.export.packing import Packing
from hashee.export.products import INT8_GAIN, Matrix, matrix_of, multiply


@dataclass(frozen=True)
class QueryRows:
    """The rows that a layer updates, which are the queries of its attention, and their slots; names of values.

    Without `query_slots` every sequence has one query, in the order of the sequences.
    """

    count: str
    """(1,) number of queries."""
    key_slots: str
    """(sequences, longest) packed rows of the keys of each sequence."""
    mask: str
    """(sequences, 1, longest) added to the scores, see `Packing.mask`."""
    pairs: str
    """(1,) number of pairs of query slot and key slot."""
    rows: str | None = None
    """(queries,) their packed rows; None: the first rows."""
    query_slots: str | None = None
    """(sequences, width) index of the query in each slot."""
    slot_of_row: str | None = None
    """(queries,) index of each query in the flattened query slots."""
    bias: str | None = None
    """(sequences, width, heads, longest) position bias that is added to the scores."""

    def pick(self, graph: Graph, value: str) -> str:
        """Return the queries' rows of a value that has one row for each token."""
        return graph.slice(value, graph.ints([0]), self.count) if self.rows is None else graph.gather(value, self.rows)


def active_queries(graph: Graph, packing: Packing, layer: int, bias: str | None) -> QueryRows:
    """Return the queries of a layer, from 1: the tokens that have not exited, which are the first packed rows."""
    g = graph
    active, width = packing.computed[layer - 1], packing.widths[layer - 1]
    start, last = g.ints([0]), g.node("Sub", active, g.ints([1]))
    sequence, rank = (g.slice(value, start, active) for value in (packing.sequence, packing.rank))
    return QueryRows(
        count=active,
        key_slots=packing.slots,
        mask=packing.mask,
        pairs=g.node("Mul", g.node("Mul", packing.batch, packing.longest), width),
        # Slots past a sequence's last active token hold rows that are no queries; any query may take them.
        query_slots=g.node("Min", g.slice(packing.slots, start, width, axis=1), last),
        slot_of_row=g.node("Add", g.node("Mul", sequence, width), rank),
        bias=None if bias is None else g.slice(bias, start, width, axis=1),
    )


def one_query_each(graph: Graph, packing: Packing, rows: str, bias: str | None) -> QueryRows:
    """Return the queries of a layer that updates one row of every sequence. rows: (batch,) packed rows."""
    g = graph
    if bias is not None:
        # The slots of a sequence are in the order of ranks, so a query's rank is its row of the bias.
        indices = (g.arange(packing.batch), g.gather(packing.rank, rows))
        columns = [g.node("Unsqueeze", value, g.ints([1])) for value in indices]
        bias = g.node("GatherND", bias, g.node("Concat", *columns, axis=1))
        bias = g.node("Unsqueeze", bias, g.ints([1]))
    count = g.node("Shape", rows)
    return QueryRows(
        count=count,
        rows=rows,
        key_slots=packing.slots,
        mask=packing.mask,
        pairs=g.node("Mul", count, packing.longest),
        bias=bias,
    )


def update(graph: Graph, block: Block, hidden: str, packing: Packing, queries: QueryRows) -> str:
    """Return the new states of the rows that a layer updates: (tokens, width) -> (queries, width)."""
    g = graph
    old = queries.pick(g, hidden)
    # Keys need the norm too in pre-norm models, so it runs over the frozen rows as well.
    source = g.norm(hidden, block.attention_norm) if block.pre_norm else hidden
    attention = AttentionNodes.of(block)
    query = attention.project_query(g, queries.pick(g, source) if block.pre_norm else old)
    attended = g.node("Add", attention.project_output(g, attention.attend(g, query, source, packing, queries)), old)
    if not block.pre_norm:
        attended = g.norm(attended, block.attention_norm)

    source = g.norm(attended, block.feed_forward_norm) if block.pre_norm else attended
    part = block.feed_forward
    activation = activation_of(part.activation)
    inner = activation.write(g, multiply(g, source, matrix_of(g, part.expand)))
    updated = g.node("Add", multiply(g, inner, matrix_of(g, part.contract, activation.least)), attended)
    return updated if block.pre_norm else g.norm(updated, block.feed_forward_norm)


def freeze(graph: Graph, updated: str, hidden: str, active: str) -> str:
    """Append the states of the tokens that have exited to the new ones: (tokens, width)."""
    end = graph.ints([torch.iinfo(torch.int64).max])
    kept = graph.slice(updated, graph.ints([0]), active)
    return graph.node("Concat", kept, graph.slice(hidden, active, end), axis=0)


@dataclass(frozen=True)
class AttentionNodes:
    """Writes one layer's attention, with its scale and biases folded into the weights.

    The query projection contains the scale. The key bias adds the same to all scores of a query, so the softmax cancels
    it. Attention weights sum to one, so the value bias becomes a part of the bias of the output projection.
    """

    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    output: nn.Linear
    heads: int
    scale: float

    @classmethod
    def of(cls, block: Block) -> "AttentionNodes":
        """Return the attention of a block."""
        part = block.attention
        query, key, value, output = map(as_linear, (*part.projections.modules, part.output))
        return cls(query, key, value, output, part.heads, part.scale)

    @property
    def width(self) -> int:
        """Width of the states that keys are projected from."""
        return self.key.in_features

    @property
    def head_width(self) -> int:
        """Width of one head."""
        return self.key.out_features // self.heads

    def project_query(self, graph: Graph, rows: str) -> str:
        """Return scaled queries: (queries, heads * head width)."""
        weight, bias = self.query.weight, self.query.bias
        scaled = None if bias is None else graph.weight(bias.detach().float() * self.scale, "query", bias)
        return multiply(graph, rows, Matrix(weight.detach().float() * self.scale, "query", (weight,), scaled))

    def project_output(self, graph: Graph, context: str) -> str:
        """Return the output projection: (queries, width)."""
        weight = self.output.weight.detach().double()
        bias = weight.new_zeros(weight.shape[0])
        bias = bias if self.output.bias is None else bias + self.output.bias.detach().double()
        bias = bias if self.value.bias is None else bias + weight @ self.value.bias.detach().double()
        folded = graph.weight(bias, "output_bias", self.output.weight, self.value.weight)
        return multiply(graph, context, Matrix(self.output.weight, "weight", (self.output.weight,), folded))

    def attend(self, graph: Graph, query: str, source: str, packing: Packing, queries: QueryRows) -> str:
        """Let each query attend to its sequence, in the form that takes fewer operations for this batch.

        query: (queries, width); source: (tokens, width). Returns (queries, heads * head width).
        """
        # Without the terms that both forms share, the absorbed form costs queries * width + (heads - 1) * pairs and the
        # plain one tokens * width, divided by what a lower precision gains, in which the absorbed form is not computed.
        g, gain = graph, INT8_GAIN if graph.int8 else 1
        extra = g.node("Mul", queries.pairs, g.ints(gain * (self.heads - 1)))
        dearer = queries.count if gain == 1 else g.node("Mul", queries.count, g.ints(gain))
        saved = g.node("Mul", g.node("Sub", packing.tokens, dearer), g.ints(self.width))
        fewer = g.node("Squeeze", g.node("Less", extra, saved))
        absorbed, plain = Graph(g.opset, outer=g), Graph(g.opset, outer=g)
        return g.if_else(
            fewer,
            (absorbed, self._absorbed(absorbed, query, source, queries)),
            (plain, self._plain(plain, query, source, queries)),
        )

    def _plain(self, g: Graph, query: str, source: str, queries: QueryRows) -> str:
        """Project keys and values of all tokens."""
        heads, head_width = self.heads, self.head_width
        both = torch.cat([self.key.weight.detach(), self.value.weight.detach()])
        projected = multiply(g, source, Matrix(both, "key_value", (self.key.weight, self.value.weight)))
        gathered = g.reshape(g.gather(projected, queries.key_slots), [0, 0, 2 * heads, head_width])
        keys, values = g.split(gathered, [heads, heads], axis=2)
        if queries.query_slots is None:
            by_slot = g.reshape(query, [0, heads, 1, head_width])
        else:
            by_slot = g.reshape(g.gather(query, queries.query_slots), [0, 0, heads, head_width])
            by_slot = g.node("Transpose", by_slot, perm=[0, 2, 1, 3])
        scores = g.node("MatMul", by_slot, g.node("Transpose", keys, perm=[0, 2, 3, 1]))
        scores = g.node("Add", scores, g.node("Unsqueeze", queries.mask, g.ints([1])))
        if queries.bias is not None:
            scores = g.node("Add", scores, g.node("Transpose", queries.bias, perm=[0, 2, 1, 3]))
        weights = g.node("Softmax", scores, axis=-1)
        context = g.node("MatMul", weights, g.node("Transpose", values, perm=[0, 2, 1, 3]))
        context = g.reshape(g.node("Transpose", context, perm=[0, 2, 1, 3]), [-1, heads * head_width])
        return context if queries.slot_of_row is None else g.gather(context, queries.slot_of_row)

    def _absorbed(self, g: Graph, query: str, source: str, queries: QueryRows) -> str:
        """Fold the key and value projections into the query side: q K' = (q W_K) H', A V = (A H) W_V."""
        heads, head_width, width = self.heads, self.head_width, self.width
        key = g.weight(self.key.weight.detach().view(heads, head_width, width), "absorbed_key", self.key.weight)
        by_column = self.value.weight.detach().view(heads, head_width, width).transpose(1, 2)
        value = g.weight(by_column, "absorbed_value", self.value.weight)
        by_head = g.node("Transpose", g.reshape(query, [0, heads, head_width]), perm=[1, 0, 2])
        by_slot = g.node("Transpose", g.node("MatMul", by_head, key), perm=[1, 0, 2])
        if queries.query_slots is not None:
            by_slot = g.reshape(g.gather(by_slot, queries.query_slots), [0, -1, width])
        keys = g.gather(source, queries.key_slots)
        scores = g.node("MatMul", by_slot, g.node("Transpose", keys, perm=[0, 2, 1]))
        scores = g.node("Add", scores, queries.mask)
        if queries.bias is not None:
            bias = g.node("Reshape", queries.bias, g.node("Shape", scores))
            scores = g.node("Add", scores, bias)
        weighted = g.reshape(g.node("MatMul", g.node("Softmax", scores, axis=-1), keys), [-1, heads, width])
        weighted = weighted if queries.slot_of_row is None else g.gather(weighted, queries.slot_of_row)
        by_head = g.node("MatMul", g.node("Transpose", weighted, perm=[1, 0, 2]), value)
        return g.reshape(g.node("Transpose", by_head, perm=[1, 0, 2]), [-1, heads * head_width])


def run_head(graph: Graph, rows: str, layers: HeadLayers) -> str:
    """Pass rows through the layers of a pooler or a head."""
    for layer in layers:
        if isinstance(layer, str) or not hasattr(layer, "weight"):
            rows = activate(graph, rows, layer)
        elif type(layer).__name__ == "LayerNorm":
            rows = graph.norm(rows, layer)
        else:
            rows = graph.linear(rows, layer)
    return rows
