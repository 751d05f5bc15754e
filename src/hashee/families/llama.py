"""Llama: a decoder alone, with rotary positions, RMS norms, a gated feed-forward and grouped-query attention."""

import sys
from typing import Any

from torch import Tensor
from torch.nn import Module
from transformers import LlamaConfig, LlamaModel

from hashee.cost.generation import DecoderShape
from hashee.engine.block import Block, Dropout
from hashee.engine.decoder_adapter import DecoderAdapter, DecoderBlock
from hashee.engine.parts import AttentionPart, FeedForwardPart, SeparateProjections


def llama_block(layer: Any, number: int) -> Block:
    """Return a layer of Llama, or of an encoder with the same layers, as a block. number: its exit layer, from 1."""
    attention, feed_forward = layer.self_attn, layer.mlp
    heads: int = attention.config.num_attention_heads
    return Block(
        layer=number,
        attention=AttentionPart(
            SeparateProjections(attention.q_proj, attention.k_proj, attention.v_proj),
            attention.o_proj,
            heads=heads,
            scale=attention.scaling,
            key_value_heads=heads // attention.num_key_value_groups,
        ),
        attention_norm=layer.input_layernorm,
        feed_forward=FeedForwardPart(
            feed_forward.gate_proj, feed_forward.act_fn, feed_forward.down_proj, gate=feed_forward.up_proj
        ),
        feed_forward_norm=layer.post_attention_layernorm,
        dropout=Dropout(scores=attention.attention_dropout),
        training=layer.training,
        pre_norm=True,
    )


class LlamaDecoderAdapter(DecoderAdapter):
    model_type = "llama"
    config_class = LlamaConfig
    decoder_class = LlamaModel

    def block(self, layer: Any, number: int) -> DecoderBlock:
        return DecoderBlock(llama_block(layer, number))

    def embed(self, decoder: Any, ids: Tensor, words: Tensor | None, positions: Tensor) -> Tensor:
        embedded: Tensor = decoder.embed_tokens(ids) if words is None else words
        return embedded

    def rotary(self, decoder: Any, hidden: Tensor, positions: Tensor) -> tuple[Tensor, Tensor] | None:
        # Both halves of a head are rotated by the same angles.
        cosine, sine = (angles.chunk(2, dim=-1)[0] for angles in decoder.rotary_emb(hidden, position_ids=positions))
        return cosine, sine

    def max_position(self, decoder: Any) -> int:
        return sys.maxsize

    def final_norm(self, decoder: Any) -> Module | None:
        norm: Module = decoder.norm
        return norm

    def keep_first_layers(self, config: Any, number: int) -> None:
        config.num_hidden_layers = number

    def shape(self, config: Any) -> DecoderShape:
        return DecoderShape(
            layers=config.num_hidden_layers,
            width=config.hidden_size,
            heads=config.num_attention_heads,
            inner=config.intermediate_size,
            vocabulary=config.vocab_size,
            attends_to_source=False,
            head_width=config.head_dim,
            key_value_heads=config.num_key_value_heads,
            gated=True,
        )
