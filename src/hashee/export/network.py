"""The whole graph of a converted model: pack, embed, layers, head."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from hashee.engine.adapter import HeadLayers, OnnxLayout
from hashee.engine.block import Block
from hashee.errors import UnsupportedModel
from hashee.export.embeddings import embed, has_token_types
from hashee.export.graph import Graph
from hashee.export.layers import active_queries, freeze, one_query_each, run_head, update
from hashee.export.packing import Packing, pack_batch, unpack, with_padding_row
from hashee.export.sentences import OUTPUT, EmbeddingHead, mean_of_rows
from hashee.families.adapters import ADAPTERS, adapter_for

BIAS_REACH = 512
"""Positions farther apart than this share one bias; MPNet's is constant from a distance of 128."""

Shape = tuple[str | int, ...]


@dataclass(frozen=True)
class OnnxNetwork:
    """A finished graph with the names of its inputs, and the names and shapes of its outputs."""

    graph: Graph
    inputs: tuple[str, ...]
    outputs: dict[str, Shape]
    reads_first_row: bool
    """Whether nothing but the first position of every text is read of the last layer."""


@dataclass(frozen=True)
class Client:
    """What a client of sentence-transformers does around the encoder, where there is one."""

    embedding: EmbeddingHead | None
    """What follows a bare model; None: a reranker's head is in the model."""
    token_types: bool
    """Whether it gives the model token types, if the model has any."""


@dataclass(frozen=True)
class HeadInput:
    """The states that a head reads, with the graph and packing that they belong to."""

    graph: Graph
    packing: Packing
    hidden: str
    width: int


def build_network(model: Any, opset: int, int8: bool = False, client: Client | None = None) -> OnnxNetwork:
    """Write the graph of a converted model in evaluation mode."""
    layout, embedding = layout_of(model), client.embedding if client else None
    write_head = _head_of(model) if embedding is None else partial(_embedding_head, embedding)
    encoder = model.hashed_encoder
    adapter = encoder.adapter
    graph = Graph(opset, int8=int8)
    packing = pack_batch(graph, encoder.exit_layers, model.exit_table.num_layers)
    token_types = has_token_types(encoder) and (client is None or client.token_types)
    hidden = embed(graph, encoder, layout, packing, token_types)
    bias = _position_bias(graph, encoder, packing)
    blocks = list(adapter.blocks(encoder))
    width = adapter.shape(model.config).width
    first_only = write_head is _sequence_head if embedding is None else embedding.reads_first
    for block in blocks[:-1] if first_only else blocks:
        queries = active_queries(graph, packing, block.layer, bias)
        updated = update(graph, block, hidden, packing, queries)
        hidden = freeze(graph, updated, hidden, packing.active[block.layer - 1])
    packed = HeadInput(graph, packing, hidden, width)
    if first_only:
        # The head reads the first positions alone, so the last layer computes no other row.
        packed = HeadInput(graph, packing, _update_first(packed, blocks[-1], bias), width)
    norm = adapter.final_norm(encoder)
    if norm is not None:
        packed = HeadInput(graph, packing, graph.norm(packed.hidden, norm), width)
    inputs = ("input_ids", "attention_mask", *(("token_type_ids",) if token_types else ()))
    reads_first_row = bool(encoder.reads_first_row) if embedding is None else embedding.reads_first
    return OnnxNetwork(graph, inputs, write_head(packed, model, layout), reads_first_row)


def layout_of(model: Any) -> OnnxLayout:
    """Return what the exporter needs to know of a model's family, or refuse the family."""
    adapter = adapter_for(model.config)
    if adapter.onnx is None:
        covered = ", ".join(sorted(name for name, other in ADAPTERS.items() if other.onnx is not None))
        raise UnsupportedModel(f"{adapter.model_type} models cannot be exported to ONNX, which covers {covered}")
    return adapter.onnx


def _head_of(model: Any) -> Any:
    """Return the function that writes the head of a model, or refuse it."""
    if model is model.hashed_encoder:
        return _no_head
    name = type(model).__name__
    for suffix, write in HEADS.items():
        if name.endswith(suffix):
            return write
    known = ", ".join(f"...{suffix}" for suffix in HEADS)
    raise UnsupportedModel(f"the head of {name} cannot be exported to ONNX, which covers bare models and {known}")


def _sequence_head(packed: HeadInput, model: Any, layout: OnnxLayout) -> dict[str, Shape]:
    """Write logits of whole sequences from (batch, width) states of the first position."""
    layers = layout.classifier(model, model.hashed_encoder)
    _name_first_row_output(packed, run_head(packed.graph, packed.hidden, layers), "logits")
    return {"logits": ("batch", layers[-1].out_features)}


def _token_head(packed: HeadInput, model: Any, layout: OnnxLayout) -> dict[str, Shape]:
    return {"logits": ("batch", "length", _per_token(packed, (model.classifier,), "logits"))}


def _masked_lm_head(packed: HeadInput, model: Any, layout: OnnxLayout) -> dict[str, Shape]:
    return {"logits": ("batch", "length", _per_token(packed, layout.masked_lm(model), "logits"))}


def _question_answering_head(packed: HeadInput, model: Any, layout: OnnxLayout) -> dict[str, Shape]:
    _per_token(packed, (model.qa_outputs,), "start_and_end")
    start, end = packed.graph.split("start_and_end", [1, 1], axis=2)
    for name, value in (("start_logits", start), ("end_logits", end)):
        packed.graph.node("Squeeze", value, packed.graph.ints([2]), name=name)
    return {"start_logits": ("batch", "length"), "end_logits": ("batch", "length")}


def _no_head(packed: HeadInput, model: Any, layout: OnnxLayout) -> dict[str, Shape]:
    graph, packing, width = packed.graph, packed.packing, packed.width
    rows = with_padding_row(graph, packed.hidden, width)
    unpack(graph, rows, packing, "last_hidden_state")
    outputs: dict[str, Shape] = {"last_hidden_state": ("batch", "length", width)}
    pooler = layout.pooler(model)
    if pooler is None:
        return outputs
    _name_first_row_output(packed, run_head(graph, graph.gather(rows, _first_rows(packed)), pooler), "pooler_output")
    return {**outputs, "pooler_output": ("batch", width)}


def _embedding_head(head: EmbeddingHead, packed: HeadInput, model: Any, layout: OnnxLayout) -> dict[str, Shape]:
    """Write the embeddings of whole texts, from states of the first position or from those of all tokens."""
    graph, width = packed.graph, packed.width
    if head.reads_first:
        width = head.output_width(width)
        _name_first_row_output(packed, head.write(graph, packed.hidden), OUTPUT)
    else:
        pooled = mean_of_rows(graph, with_padding_row(graph, packed.hidden, width), packed.packing, width)
        width = head.output_width(width)
        graph.node("Identity", head.write(graph, pooled), name=OUTPUT)
    return {OUTPUT: ("batch", width)}


HEADS = {
    "ForSequenceClassification": _sequence_head,
    "ForTokenClassification": _token_head,
    "ForQuestionAnswering": _question_answering_head,
    "ForMaskedLM": _masked_lm_head,
}
"""By the ending of transformers' class names."""


def _per_token(packed: HeadInput, layers: HeadLayers, name: str) -> int:
    """Write an output for every position and return its width; padding gets the output of a row of zeros."""
    rows = with_padding_row(packed.graph, packed.hidden, packed.width)
    unpack(packed.graph, run_head(packed.graph, rows, layers), packed.packing, name)
    width: int = layers[-1].out_features
    return width


def _first_rows(packed: HeadInput) -> str:
    """Return the packed row of every sequence's first position; for padding the number of tokens: (batch,)."""
    graph, packing = packed.graph, packed.packing
    starts = graph.node("Mul", graph.arange(packing.batch), packing.length)
    return graph.gather(packing.row_of_position, starts)


def _update_first(packed: HeadInput, block: Block, bias: str | None) -> str:
    """Run the last block for the first position of every sequence alone: (batch, width)."""
    g, packing = packed.graph, packed.packing
    first = _first_rows(packed)
    rows = g.node("Min", first, g.node("Sub", packing.tokens, g.ints([1])))
    queries = one_query_each(g, packing, rows, bias)
    updated = update(g, block, packed.hidden, packing, queries)
    # Active rows come first, so a row past them is that of a token that has exited.
    is_active = g.node("Less", first, packing.active[block.layer - 1])
    return g.node("Where", g.node("Unsqueeze", is_active, g.ints([1])), updated, g.gather(packed.hidden, rows))


def _name_first_row_output(packed: HeadInput, value: str, name: str) -> None:
    """Name an output that reads the first position; where that is padding it is NaN."""
    g = packed.graph
    real = g.node("Unsqueeze", g.node("Less", _first_rows(packed), packed.packing.tokens), g.ints([1]))
    g.node("Where", real, value, g.floats(float("nan")), name=name)


def _position_bias(graph: Graph, encoder: Any, packing: Packing) -> str | None:
    """Return the relative position bias, if the family has one: (batch, longest, heads, longest)."""
    positions = torch.arange(BIAS_REACH, device=encoder.exit_layers.device)[None]
    with torch.no_grad():
        whole = encoder.adapter.position_bias(encoder, positions)
    if whole is None:
        return None
    g = graph
    # Distances from -(reach - 1) to reach - 1: the first column in reverse, then the first row.
    backward, forward = whole[0, :, 1:, 0].flip(1), whole[0, :, 0]
    by_distance = g.weight(torch.cat([backward, forward], dim=1).t(), "position_bias", whole)
    columns = g.node("Mod", g.gather(packing.rows, packing.slots), packing.length)
    distance = g.node("Sub", g.node("Unsqueeze", columns, g.ints([1])), g.node("Unsqueeze", columns, g.ints([2])))
    limit = BIAS_REACH - 1
    clipped = g.node("Max", g.node("Min", distance, g.ints(limit)), g.ints(-limit))
    bias = g.gather(by_distance, g.node("Add", clipped, g.ints(limit)))
    return g.node("Transpose", bias, perm=[0, 1, 3, 2])
