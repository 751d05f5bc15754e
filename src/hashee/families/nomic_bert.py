"""NomicBERT, and the families with its layers: norms after the sub-layers, rotary positions, gated feed-forward."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor
from torch.nn import Module
from transformers import NomicBertConfig, NomicBertModel, PreTrainedConfig, PreTrainedModel

from hashee.cost.macs import EncoderShape
from hashee.engine.adapter import Adapter, PackedTokens
from hashee.engine.attention import PositionTerms, half_angles
from hashee.engine.block import Block, Dropout
from hashee.engine.parts import AttentionPart, FeedForwardPart, SeparateProjections


class NomicBertAdapter(Adapter):
    model_type = "nomic_bert"
    config_class: ClassVar[type[PreTrainedConfig]] = NomicBertConfig
    encoder_class: ClassVar[type[PreTrainedModel]] = NomicBertModel

    def layers(self, encoder: Any) -> list[Module]:
        return list(encoder.layers)

    def block(self, layer: Any, number: int) -> Block:
        attention, feed_forward = layer.self_attn, layer.mlp
        return Block(
            layer=number,
            attention=AttentionPart(
                SeparateProjections(attention.q_proj, attention.k_proj, attention.v_proj),
                attention.o_proj,
                heads=attention.config.num_attention_heads,
                scale=attention.scaling,
            ),
            attention_norm=layer.post_attention_layernorm,
            feed_forward=FeedForwardPart(
                feed_forward.gate_proj, feed_forward.act_fn, feed_forward.down_proj, gate=feed_forward.up_proj
            ),
            feed_forward_norm=layer.post_mlp_layernorm,
            dropout=Dropout(
                attention_output=layer.post_attention_dropout.p,
                scores=attention.attention_dropout,
                activation=self.activation_dropout(layer),
                feed_forward=layer.post_mlp_dropout.p,
            ),
            training=layer.training,
        )

    def activation_dropout(self, layer: Any) -> float:
        """Return the dropout probability of the input of the feed-forward's last product."""
        return 0.0

    def max_position(self, encoder: Any) -> int:
        return self.max_length(encoder.config)

    def position_terms(
        self, encoder: Any, tokens: PackedTokens, columns: Tensor, hidden: Tensor
    ) -> Mapping[str, PositionTerms]:
        return {"": PositionTerms(rotary=half_angles(encoder.rotary_emb(hidden, tokens.positions)))}

    def shape(self, config: Any) -> EncoderShape:
        head_width = getattr(config, "head_dim", None)
        return dataclasses.replace(super().shape(config), absorbable=False, gated=True, head_width=head_width)
