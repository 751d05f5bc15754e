"""ModernBERT: rotary positions, local attention in most layers, fused projections and a gated feed-forward."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.nn import Module
from transformers import ModernBertConfig, ModernBertModel

from hashee.cost.macs import EncoderShape
from hashee.engine.adapter import Adapter, PackedTokens
from hashee.engine.attention import PositionTerms, half_angles
from hashee.engine.block import Block, Dropout
from hashee.engine.parts import AttentionPart, FeedForwardPart, FusedProjections

LOCAL = "sliding_attention"


class ModernBertAdapter(Adapter):
    model_type = "modernbert"
    config_class = ModernBertConfig
    encoder_class = ModernBertModel
    token_types = False
    # Its multiple-choice head reads the first real token, also after padding on the left.
    heads_on_first_row = ("ForSequenceClassification",)

    def reads_first_row(self, model_class: type, config: Any = None) -> bool:
        by_mean = config is not None and config.classifier_pooling != "cls"
        return super().reads_first_row(model_class, config) and not by_mean

    def layers(self, encoder: Any) -> list[Module]:
        return list(encoder.layers)

    def block(self, layer: Any, number: int) -> Block:
        attention, feed_forward = layer.attn, layer.mlp
        return Block(
            layer=number,
            attention=AttentionPart(
                FusedProjections(attention.Wqkv),
                attention.Wo,
                heads=attention.config.num_attention_heads,
                scale=attention.head_dim**-0.5,
                attention_type=layer.attention_type,
                window=attention.config.sliding_window if layer.attention_type == LOCAL else None,
            ),
            attention_norm=layer.attn_norm,
            feed_forward=FeedForwardPart(feed_forward.Wi, feed_forward.act, feed_forward.Wo, gated=True),
            feed_forward_norm=layer.mlp_norm,
            dropout=Dropout(
                # Without dropout the module is an Identity.
                attention_output=getattr(attention.out_drop, "p", 0.0),
                scores=attention.attention_dropout,
                activation=feed_forward.drop.p,
            ),
            training=layer.training,
            pre_norm=True,
        )

    def embed(self, encoder: Any, tokens: PackedTokens) -> Tensor:
        ids = tokens.ids if tokens.embeds is None else None
        embedded: Tensor = encoder.embeddings(input_ids=ids, inputs_embeds=tokens.embeds)
        return embedded

    def max_position(self, encoder: Any) -> int:
        return self.max_length(encoder.config)

    def position_terms(
        self, encoder: Any, tokens: PackedTokens, columns: Tensor, hidden: Tensor
    ) -> Mapping[str, PositionTerms]:
        terms = {}
        for attention_type in {layer.attention_type for layer in encoder.layers}:
            angles = encoder.rotary_emb(hidden, tokens.positions, attention_type)
            terms[attention_type] = PositionTerms(rotary=half_angles(angles))
        return terms

    def final_norm(self, encoder: Any) -> Module | None:
        norm: Module = encoder.final_norm
        return norm

    def keep_first_layers(self, config: Any, number: int) -> None:
        super().keep_first_layers(config, number)
        config.layer_types = config.layer_types[:number]

    def shape(self, config: Any) -> EncoderShape:
        layer_types = config.layer_types[: config.num_hidden_layers]
        windows = tuple(config.sliding_window if layer_type == LOCAL else None for layer_type in layer_types)
        return dataclasses.replace(super().shape(config), absorbable=False, gated=True, windows=windows)
