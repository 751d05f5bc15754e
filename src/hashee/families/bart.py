"""BART (norms after the residual sum) and mBART (norms before the sub-layers): encoders and decoders."""

from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor
from torch.nn import Module
from transformers import BartConfig, MBartConfig, PreTrainedConfig, PreTrainedModel
from transformers.models.bart.modeling_bart import BartDecoder, BartEncoder
from transformers.models.mbart.modeling_mbart import MBartDecoder, MBartEncoder

from hashee.cost.generation import DecoderShape
from hashee.cost.macs import EncoderShape
from hashee.engine.adapter import Adapter, PackedTokens
from hashee.engine.block import Block, Dropout
from hashee.engine.decoder_adapter import DecoderAdapter, DecoderBlock
from hashee.engine.parts import AttentionPart, FeedForwardPart, SeparateProjections


class BartAdapter(Adapter):
    model_type = "bart"
    config_class: ClassVar[type[PreTrainedConfig]] = BartConfig
    encoder_class: ClassVar[type[PreTrainedModel]] = BartEncoder
    token_types = False
    # BART's classifier reads the decoder at the end-of-text token.
    heads_on_first_row = ()
    pre_norm = False

    def layers(self, encoder: Any) -> list[Module]:
        return list(encoder.layers)

    def block(self, layer: Any, number: int) -> Block:
        attention = layer.self_attn
        return Block(
            layer=number,
            attention=_attention(attention),
            attention_norm=layer.self_attn_layer_norm,
            feed_forward=FeedForwardPart(layer.fc1, layer.activation_fn, layer.fc2),
            feed_forward_norm=layer.final_layer_norm,
            dropout=Dropout(
                attention_output=layer.dropout,
                scores=attention.dropout,
                activation=layer.activation_dropout,
                feed_forward=layer.dropout,
            ),
            training=layer.training,
            pre_norm=self.pre_norm,
            clamp_half=True,
        )

    def embed(self, encoder: Any, tokens: PackedTokens) -> Tensor:
        words = encoder.embed_tokens(tokens.ids) if tokens.embeds is None else tokens.embeds
        # The position embeddings add their own offset and a leading dimension.
        positions = encoder.embed_positions(tokens.ids, position_ids=tokens.positions[0])
        embedded = encoder.layernorm_embedding(words + positions)
        return F.dropout(embedded, encoder.dropout, encoder.training)

    def max_position(self, encoder: Any) -> int:
        rows: int = encoder.embed_positions.num_embeddings - encoder.embed_positions.offset
        return rows

    def layer_drop(self, encoder: Any) -> float:
        probability: float = encoder.layerdrop
        return probability

    def shape(self, config: Any) -> EncoderShape:
        return EncoderShape(
            layers=config.encoder_layers,
            width=config.d_model,
            heads=config.encoder_attention_heads,
            inner=config.encoder_ffn_dim,
        )


class MBartAdapter(BartAdapter):
    model_type = "mbart"
    config_class = MBartConfig
    encoder_class = MBartEncoder
    pre_norm = True

    def final_norm(self, encoder: Any) -> Module | None:
        norm: Module = encoder.layer_norm
        return norm


class BartDecoderAdapter(DecoderAdapter):
    model_type = "bart"
    config_class: ClassVar[type[PreTrainedConfig]] = BartConfig
    decoder_class: ClassVar[type[PreTrainedModel]] = BartDecoder
    pre_norm = False

    def block(self, layer: Any, number: int) -> DecoderBlock:
        attention, cross = layer.self_attn, layer.encoder_attn
        return DecoderBlock(
            Block(
                layer=number,
                attention=_attention(attention),
                attention_norm=layer.self_attn_layer_norm,
                feed_forward=FeedForwardPart(layer.fc1, layer.activation_fn, layer.fc2),
                feed_forward_norm=layer.final_layer_norm,
                dropout=Dropout(
                    attention_output=layer.dropout,
                    scores=attention.dropout,
                    activation=layer.activation_dropout,
                    feed_forward=layer.dropout,
                ),
                training=layer.training,
                pre_norm=self.pre_norm,
            ),
            cross_attention=_attention(cross),
            cross_attention_norm=layer.encoder_attn_layer_norm,
        )

    def embed(self, decoder: Any, ids: Tensor, words: Tensor | None, positions: Tensor) -> Tensor:
        looked_up = decoder.embed_tokens(ids) if words is None else words
        # The position embeddings add their own offset and a leading dimension.
        embedded = decoder.layernorm_embedding(looked_up + decoder.embed_positions(ids, position_ids=positions[0]))
        return F.dropout(embedded, decoder.dropout, decoder.training)

    def max_position(self, decoder: Any) -> int:
        rows: int = decoder.embed_positions.num_embeddings - decoder.embed_positions.offset
        return rows

    def layer_drop(self, decoder: Any) -> float:
        probability: float = decoder.layerdrop
        return probability

    def keep_first_layers(self, config: Any, number: int) -> None:
        config.decoder_layers = number

    def shape(self, config: Any) -> DecoderShape:
        return DecoderShape(
            layers=config.decoder_layers,
            width=config.d_model,
            heads=config.decoder_attention_heads,
            inner=config.decoder_ffn_dim,
            vocabulary=config.vocab_size,
        )


class MBartDecoderAdapter(BartDecoderAdapter):
    model_type = "mbart"
    config_class = MBartConfig
    decoder_class = MBartDecoder
    pre_norm = True

    def final_norm(self, decoder: Any) -> Module | None:
        norm: Module = decoder.layer_norm
        return norm


def _attention(attention: Any) -> AttentionPart:
    return AttentionPart(
        SeparateProjections(attention.q_proj, attention.k_proj, attention.v_proj),
        attention.out_proj,
        heads=attention.num_heads,
        scale=attention.scaling,
    )
