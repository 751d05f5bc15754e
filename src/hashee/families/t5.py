"""The encoder of T5 and flan-T5: RMS norms before the sub-layers, a relative position bias, no biases, no scaling.

The bias of the first layer's attention is added to the scores of all layers. The feed-forward is plain (T5) or gated
(T5 1.1, flan-T5). The width of all heads together may differ from that of the states.
"""

import sys
from typing import Any

from torch import Tensor, nn
from torch.nn import Module
from transformers import T5Config
from transformers.models.t5.modeling_t5 import T5Stack

from hashee.cost.macs import EncoderShape
from hashee.engine.adapter import Adapter, PackedTokens
from hashee.engine.block import Block, Dropout
from hashee.engine.parts import AttentionPart, FeedForwardPart, SeparateProjections

LONGEST = 512
"""Tokens of the texts that T5 was trained on; relative positions set no limit."""


class T5Adapter(Adapter):
    model_type = "t5"
    config_class = T5Config
    encoder_class = T5Stack
    token_types = False
    # T5's classifier reads the decoder at the end-of-text token.
    heads_on_first_row = ()

    def layers(self, encoder: Any) -> list[Module]:
        return list(encoder.block)

    def block(self, layer: Any, number: int) -> Block:
        attention, feed_forward = layer.layer[0].SelfAttention, layer.layer[-1].DenseReluDense
        is_gated = hasattr(feed_forward, "wi_0")
        return Block(
            layer=number,
            attention=AttentionPart(
                SeparateProjections(attention.q, attention.k, attention.v),
                attention.o,
                heads=attention.n_heads,
                scale=attention.scaling,
            ),
            attention_norm=layer.layer[0].layer_norm,
            feed_forward=FeedForwardPart(
                feed_forward.wi_0 if is_gated else feed_forward.wi,
                feed_forward.act,
                feed_forward.wo,
                gate=feed_forward.wi_1 if is_gated else None,
            ),
            feed_forward_norm=layer.layer[-1].layer_norm,
            dropout=Dropout(
                attention_output=layer.layer[0].dropout.p,
                scores=attention.dropout,
                activation=feed_forward.dropout.p,
                feed_forward=layer.layer[-1].dropout.p,
            ),
            training=layer.training,
            pre_norm=True,
            clamp_half=True,
        )

    def embed(self, encoder: Any, tokens: PackedTokens) -> Tensor:
        words = encoder.embed_tokens(tokens.ids) if tokens.embeds is None else tokens.embeds
        embedded: Tensor = encoder.dropout(words)
        return embedded

    def max_position(self, encoder: Any) -> int:
        return sys.maxsize

    def max_length(self, config: Any) -> int:
        return LONGEST

    def position_bias(self, encoder: Any, columns: Tensor) -> Tensor | None:
        length = int(columns.max()) + 1
        # (heads, length, length), by column of the input.
        (bias,) = encoder.block[0].layer[0].SelfAttention.compute_bias(length, length, device=columns.device)
        of_slots: Tensor = bias[:, columns[:, :, None], columns[:, None, :]]
        return of_slots.transpose(0, 1)

    def final_norm(self, encoder: Any) -> Module | None:
        return nn.Sequential(encoder.final_layer_norm, encoder.dropout)

    def keep_first_layers(self, config: Any, number: int) -> None:
        config.num_layers = number

    def shape(self, config: Any) -> EncoderShape:
        return EncoderShape(
            layers=config.num_layers,
            width=config.d_model,
            heads=config.num_heads,
            inner=config.d_ff,
            absorbable=False,
            gated=config.is_gated_act,
            head_width=config.d_kv,
        )
