"""What the exporter must know of a family beyond its adapter: positions, embeddings, poolers and heads.

Adding a family is a line in FAMILIES; the exporter compares every graph with the model before it is written.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hashee.errors import UnsupportedModel
from hashee.export.activations import activate
from hashee.export.graph import Graph
from hashee.export.packing import Packing
from hashee.families import PREFIX

Steps = tuple[Any, ...]
"""Linear and LayerNorm modules, activations (modules or names), in the order in which rows pass them."""


@dataclass(frozen=True)
class Family:
    """Where a family keeps what surrounds its layers; functions of the model."""

    classifier: Callable[[Any, Any], Steps]
    """(model, encoder) -> the steps from the first row to the logits of a sequence."""
    masked_lm: Callable[[Any], Steps]
    """model -> the steps from a row to the logits of the vocabulary."""
    positions_after_padding: bool = False
    """Whether positions count the tokens that are not padding, from the padding id + 1, instead of columns."""
    project: Callable[[Any], Any] = lambda encoder: None
    """encoder -> the Linear between embeddings and layers, or None."""
    pooler: Callable[[Any], Steps | None] = lambda encoder: (
        None if getattr(encoder, "pooler", None) is None else (encoder.pooler.dense, "Tanh")
    )
    """encoder -> the steps of the pooler, or None."""


def _bert_lm(model: Any) -> Steps:
    transform = model.cls.predictions.transform
    return transform.dense, transform.transform_act_fn, transform.LayerNorm, model.cls.predictions.decoder


def _roberta_lm(model: Any) -> Steps:
    head = model.lm_head
    return head.dense, "GELUActivation", head.layer_norm, head.decoder


BERT = Family(
    classifier=lambda model, encoder: (encoder.pooler.dense, "Tanh", model.classifier),
    masked_lm=_bert_lm,
)
ROBERTA = Family(
    classifier=lambda model, encoder: (model.classifier.dense, "Tanh", model.classifier.out_proj),
    masked_lm=_roberta_lm,
    positions_after_padding=True,
)
ALBERT = Family(
    classifier=lambda model, encoder: (encoder.pooler, encoder.pooler_activation, model.classifier),
    masked_lm=lambda model: (
        model.predictions.dense,
        model.predictions.activation,
        model.predictions.LayerNorm,
        model.predictions.decoder,
    ),
    project=lambda encoder: encoder.encoder.embedding_hidden_mapping_in,
    pooler=lambda encoder: None if encoder.pooler is None else (encoder.pooler, encoder.pooler_activation),
)
DISTILBERT = Family(
    classifier=lambda model, encoder: (model.pre_classifier, "ReLU", model.classifier),
    masked_lm=lambda model: (
        model.vocab_transform,
        model.activation,
        model.vocab_layer_norm,
        model.vocab_projector,
    ),
)
ELECTRA = Family(
    classifier=lambda model, encoder: (
        model.classifier.dense,
        model.classifier.activation,
        model.classifier.out_proj,
    ),
    masked_lm=lambda model: (
        model.generator_predictions.dense,
        model.generator_predictions.activation,
        model.generator_predictions.LayerNorm,
        model.generator_lm_head,
    ),
    project=lambda encoder: getattr(encoder, "embeddings_project", None),
)
FAMILIES: dict[str, Family] = {
    "albert": ALBERT,
    "bert": BERT,
    "camembert": ROBERTA,
    "distilbert": DISTILBERT,
    "elasticbert": BERT,
    "electra": ELECTRA,
    "mpnet": ROBERTA,
    "roberta": ROBERTA,
    "roberta-prelayernorm": ROBERTA,
    "xlm-roberta": ROBERTA,
}


def family_of(model: Any) -> Family:
    """Return what the exporter knows of a model's family, or refuse it."""
    model_type = model.config.model_type.removeprefix(PREFIX)
    if model_type not in FAMILIES:
        raise UnsupportedModel(
            f"{model_type} models cannot be exported to ONNX, which covers {', '.join(sorted(FAMILIES))}"
        )
    return FAMILIES[model_type]


def run_steps(graph: Graph, rows: str, steps: Steps) -> str:
    """Pass rows through the steps of a pooler or a head."""
    for step in steps:
        kind = type(step).__name__
        if isinstance(step, str) or not hasattr(step, "weight"):
            rows = activate(graph, rows, step)
        else:
            rows = graph.norm(rows, step) if kind == "LayerNorm" else graph.linear(rows, step)
    return rows


def has_token_types(encoder: Any) -> bool:
    """Return whether token types make a difference: RoBERTa has a table of one row."""
    types = getattr(encoder.embeddings, "token_type_embeddings", None)
    return types is not None and types.num_embeddings > 1


def embed(graph: Graph, encoder: Any, family: Family, packing: Packing) -> str:
    """Return the states that the first layer takes: (tokens, width)."""
    g, tables = graph, encoder.embeddings
    words = g.take(g.weight(tables.word_embeddings.weight, "weight"), _packed(g, packing.ids, packing))
    if family.positions_after_padding:
        positions = _packed(g, _positions_after_padding(g, int(tables.padding_idx)), packing)
    else:
        positions = g.node("Mod", packing.rows, packing.length)
    places = g.take(g.weight(tables.position_embeddings.weight, "weight"), positions)
    embedded = g.node("Add", words, places)
    types = getattr(tables, "token_type_embeddings", None)
    if types is not None:
        table = g.weight(types.weight, "weight")
        kinds = g.take(table, _packed(g, "token_type_ids", packing)) if has_token_types(encoder) else table
        embedded = g.node("Add", embedded, kinds)
    embedded = g.norm(embedded, tables.LayerNorm)
    projection = family.project(encoder)
    return embedded if projection is None else g.linear(embedded, projection)


def _packed(graph: Graph, value: str, packing: Packing) -> str:
    """Take the real tokens of a (batch, length) value in packed order."""
    return graph.take(graph.shape(value, [-1]), packing.rows)


def _positions_after_padding(graph: Graph, padding_id: int) -> str:
    g = graph
    differs = g.node("Not", g.node("Equal", "input_ids", g.ints(padding_id)))
    real = g.node("Cast", differs, to=g.onnx.TensorProto.INT64)
    counted = g.node("Mul", g.node("CumSum", real, g.ints(1)), real)
    return g.node("Add", counted, g.ints(padding_id))
