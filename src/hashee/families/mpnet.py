"""MPNet: BERT layers with one relative position bias shared by all of them."""

import dataclasses
from typing import Any

from torch import Tensor
from transformers import MPNetConfig, MPNetModel
from transformers.models.mpnet.modeling_mpnet import MPNetEmbeddings

from hashee.cost.macs import EncoderShape
from hashee.engine.adapter import Adapter, HeadLayers, OnnxLayout, PackedTokens, positions_after_padding
from hashee.engine.block import Block, Dropout
from hashee.engine.parts import AttentionPart, FeedForwardPart, SeparateProjections


def _masked_lm(model: Any) -> HeadLayers:
    head = model.lm_head
    return head.dense, "GELUActivation", head.layer_norm, head.decoder


class MPNetAdapter(Adapter):
    model_type = "mpnet"
    config_class = MPNetConfig
    encoder_class = MPNetModel
    summed_embeddings = MPNetEmbeddings
    token_types = False
    onnx = OnnxLayout(
        classifier=lambda model, encoder: (model.classifier.dense, "Tanh", model.classifier.out_proj),
        masked_lm=_masked_lm,
        positions_after_padding=True,
    )

    def block(self, layer: Any, number: int) -> Block:
        attention = layer.attention.attn
        return Block(
            layer=number,
            attention=AttentionPart(
                SeparateProjections(attention.q, attention.k, attention.v),
                attention.o,
                heads=attention.num_attention_heads,
                scale=attention.attention_head_size**-0.5,
            ),
            attention_norm=layer.attention.LayerNorm,
            feed_forward=FeedForwardPart(
                layer.intermediate.dense, layer.intermediate.intermediate_act_fn, layer.output.dense
            ),
            feed_forward_norm=layer.output.LayerNorm,
            dropout=Dropout(
                attention_output=layer.attention.dropout.p,
                scores=attention.dropout.p,
                feed_forward=layer.output.dropout.p,
            ),
            training=layer.training,
        )

    def embed(self, encoder: Any, tokens: PackedTokens) -> Tensor:
        ids = tokens.ids if tokens.embeds is None else None
        embedded: Tensor = encoder.embeddings(ids, position_ids=tokens.positions, inputs_embeds=tokens.embeds)
        return embedded

    def positions(self, encoder: Any, input_ids: Tensor) -> Tensor:
        return positions_after_padding(input_ids, encoder.embeddings.padding_idx)

    def max_length(self, config: Any) -> int:
        # Position ids start after the padding id.
        return int(config.max_position_embeddings) - 1 - 1

    def position_bias(self, encoder: Any, columns: Tensor) -> Tensor | None:
        distance = columns[:, None, :] - columns[:, :, None]
        # The number of buckets is fixed at 32 in MPNet's code, whatever the config says.
        buckets = encoder.encoder.relative_position_bucket(distance, num_buckets=32)
        bias: Tensor = encoder.encoder.relative_attention_bias(buckets)
        return bias.permute(0, 3, 1, 2)

    def shape(self, config: Any) -> EncoderShape:
        return dataclasses.replace(super().shape(config), absorbable=False)

    def as_tuple(self, output: Any) -> tuple[Any, ...]:
        # MPNet's heads skip two entries, pooler or not, so an absent pooler stays in the tuple as None.
        extras = () if output.hidden_states is None else (output.hidden_states,)
        return (output.last_hidden_state, output.pooler_output, *extras)
