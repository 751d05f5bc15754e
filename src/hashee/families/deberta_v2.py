"""DeBERTa-v2 and v3: BERT layers whose contents are also multiplied with relative positions."""

import dataclasses
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from transformers import DebertaV2Config, DebertaV2Model
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

from hashee.cost.macs import DistanceShape, EncoderShape
from hashee.engine.adapter import Adapter, PackedTokens
from hashee.engine.attention import PositionTerms
from hashee.engine.block import Block, Dropout
from hashee.engine.parts import AttentionPart, FeedForwardPart, SeparateProjections
from hashee.engine.relative_attention import DistanceProjections, RelativeDistances
from hashee.errors import UnsupportedModel


class DebertaV2Adapter(Adapter):
    model_type = "deberta-v2"
    config_class = DebertaV2Config
    encoder_class = DebertaV2Model

    def block(self, layer: Any, number: int) -> Block:
        attention = layer.attention.self
        return Block(
            layer=number,
            attention=AttentionPart(
                SeparateProjections(attention.query_proj, attention.key_proj, attention.value_proj),
                layer.attention.output.dense,
                heads=attention.num_attention_heads,
                # Each kind of term counts as one more sum of products, also where relative attention is off.
                scale=(attention.attention_head_size * (1 + len(_terms(attention.pos_att_type)))) ** -0.5,
                distances=_distance_projections(attention),
            ),
            attention_norm=layer.attention.output.LayerNorm,
            feed_forward=FeedForwardPart(
                layer.intermediate.dense, layer.intermediate.intermediate_act_fn, layer.output.dense
            ),
            feed_forward_norm=layer.output.LayerNorm,
            dropout=Dropout(
                attention_output=layer.attention.output.dropout.p,
                scores=attention.dropout.p,
                distances=attention.pos_dropout.p if attention.relative_attention else 0.0,
                feed_forward=layer.output.dropout.p,
            ),
            training=layer.training,
        )

    def max_position(self, encoder: Any) -> int:
        return self.max_length(encoder.config)

    def position_terms(
        self, encoder: Any, tokens: PackedTokens, columns: Tensor, hidden: Tensor
    ) -> Mapping[str, PositionTerms]:
        layers = encoder.encoder
        if not _has_distances(encoder.config):
            return {}
        farthest = int(columns.max() - columns.min())
        distances = torch.arange(-farthest, farthest + 1, device=columns.device)
        # The rows of the embeddings that these distances have follow each other.
        rows = _rows(distances, layers.position_buckets, layers.max_relative_positions)
        first, last = int(rows[0]), int(rows[-1])
        between_slots = columns[:, :, None] - columns[:, None, :]
        index = (rows - first)[between_slots + farthest]
        occurring = slice(first, last + 1)
        relative = RelativeDistances.of(layers.get_rel_embedding(), occurring, index, encoder.distance_cache)
        return {"": PositionTerms(relative=relative)}

    def shape(self, config: Any) -> EncoderShape:
        if getattr(config, "conv_kernel_size", 0) > 0:
            raise UnsupportedModel(
                f"a DeBERTa-v2 with a convolution after the first layer (conv_kernel_size={config.conv_kernel_size}) "
                "updates tokens that have exited from their neighbours; use a DeBERTa-v3, or a v2 without it"
            )
        shape = super().shape(config)
        if not _has_distances(config):
            return shape
        terms = _terms(config.pos_att_type)
        return dataclasses.replace(
            shape,
            absorbable=False,
            distances=DistanceShape(
                _distances_by_length(_buckets(config), _max_distance(config), self.max_length(config)),
                of_queries="c2p" in terms,
                of_keys="p2c" in terms,
            ),
        )


def _terms(names: list[str] | None) -> set[str]:
    """Return which contents are multiplied with positions: those of queries (c2p), of keys (p2c)."""
    return {"c2p", "p2c"} & set(names or ())


def _has_distances(config: Any) -> bool:
    return bool(config.relative_attention and _terms(config.pos_att_type))


def _distance_projections(attention: Any) -> DistanceProjections | None:
    if not _has_distances(attention):
        return None
    shares, terms = attention.share_att_key, _terms(attention.pos_att_type)
    key: Module | None = None
    query: Module | None = None
    if "c2p" in terms:
        key = attention.key_proj if shares else attention.pos_key_proj
    if "p2c" in terms:
        query = attention.query_proj if shares else attention.pos_query_proj
    return DistanceProjections(key, query)


def _buckets(config: Any) -> int:
    buckets: int = getattr(config, "position_buckets", -1)
    return buckets


def _max_distance(config: Any) -> int:
    distance: int = config.max_relative_positions
    return distance if distance >= 1 else int(config.max_position_embeddings)


def _rows(distances: Tensor, buckets: int, max_distance: int) -> Tensor:
    """Return the row of the relative embeddings for each distance from key to query; both same shape."""
    if buckets > 0 and max_distance > 0:
        distances = make_log_bucket_position(distances, buckets, max_distance).long()
    span = buckets if buckets > 0 else max_distance
    return (distances + span).clamp(0, 2 * span - 1)


@lru_cache(maxsize=16)
def _distances_by_length(buckets: int, max_distance: int, longest: int) -> tuple[int, ...]:
    """Return how many rows of the relative embeddings occur in texts of 0, 1, ... tokens."""
    farthest = torch.arange(longest)
    ends = (_rows(sign * farthest, buckets, max_distance) for sign in (1, -1))
    last, first = ends
    return (0, *(last - first + 1).tolist())
