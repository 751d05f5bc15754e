"""Embeddings as ONNX nodes: from the ids of a packed batch to the states that the first layer takes."""

from typing import Any

from hashee.engine.adapter import OnnxLayout
from hashee.export.graph import Graph
from hashee.export.packing import Packing


def has_token_types(encoder: Any) -> bool:
    """Return whether there is more than one token type: RoBERTa has a table of one row."""
    types = getattr(encoder.embeddings, "token_type_embeddings", None)
    return types is not None and types.num_embeddings > 1


def embed(graph: Graph, encoder: Any, layout: OnnxLayout, packing: Packing, token_types: bool) -> str:
    """Return the states that the first layer takes: (tokens, width).

    token_types: whether they are an input; else every token has the first type.
    """
    g, tables = graph, encoder.embeddings
    words = g.gather(g.weight(tables.word_embeddings.weight, "weight"), _packed(g, packing.ids, packing))
    if layout.positions_after_padding:
        positions = _packed(g, _positions_after_padding(g, int(tables.padding_idx)), packing)
    else:
        positions = g.node("Mod", packing.rows, packing.length)
    position_rows = g.gather(g.weight(tables.position_embeddings.weight, "weight"), positions)
    embedded = g.node("Add", words, position_rows)
    types = getattr(tables, "token_type_embeddings", None)
    if types is not None:
        if token_types:
            type_rows = g.gather(g.weight(types.weight, "weight"), _packed(g, "token_type_ids", packing))
        else:
            type_rows = g.weight(types.weight[:1], "first_type", types.weight)
        embedded = g.node("Add", embedded, type_rows)
    embedded = g.norm(embedded, tables.LayerNorm)
    projection = layout.projection(encoder)
    return embedded if projection is None else g.linear(embedded, projection)


def _packed(graph: Graph, value: str, packing: Packing) -> str:
    """Return the real tokens of a (batch, length) value in packed order."""
    return graph.gather(graph.reshape(value, [-1]), packing.rows)


def _positions_after_padding(graph: Graph, padding_id: int) -> str:
    g = graph
    differs = g.node("Not", g.node("Equal", "input_ids", g.ints(padding_id)))
    real = g.node("Cast", differs, to=g.onnx.TensorProto.INT64)
    counted = g.node("Mul", g.node("CumSum", real, g.ints(1)), real)
    return g.node("Add", counted, g.ints(padding_id))
