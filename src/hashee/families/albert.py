"""ALBERT: a few groups of layers, each of which runs several times, on projected embeddings."""

from typing import Any

from torch import Tensor
from torch.nn import Module
from transformers import AlbertConfig, AlbertModel

from hashee.cost.macs import EncoderShape
from hashee.engine.adapter import Adapter, HeadLayers, OnnxLayout, PackedTokens
from hashee.engine.block import Block, Dropout
from hashee.engine.parts import AttentionPart, FeedForwardPart, SeparateProjections


def _masked_lm(model: Any) -> HeadLayers:
    head = model.predictions
    return head.dense, head.activation, head.LayerNorm, head.decoder


def _pooler(encoder: Any) -> HeadLayers | None:
    return None if encoder.pooler is None else (encoder.pooler, encoder.pooler_activation)


class AlbertAdapter(Adapter):
    model_type = "albert"
    config_class = AlbertConfig
    encoder_class = AlbertModel
    onnx = OnnxLayout(
        classifier=lambda model, encoder: (encoder.pooler, encoder.pooler_activation, model.classifier),
        masked_lm=_masked_lm,
        projection=lambda encoder: encoder.encoder.embedding_hidden_mapping_in,
        pooler=_pooler,
    )

    def layers(self, encoder: Any) -> list[Module]:
        config = encoder.config
        per_group = _layers_per_group(config)
        groups = encoder.encoder.albert_layer_groups
        return [
            layer
            for number in range(config.num_hidden_layers)
            for layer in groups[int(number / per_group)].albert_layers
        ]

    def exit_layer(self, encoder: Any, index: int) -> int:
        inner: int = encoder.config.inner_group_num
        return index // inner + 1

    def block(self, layer: Any, number: int) -> Block:
        attention = layer.attention
        return Block(
            layer=number,
            attention=AttentionPart(
                SeparateProjections(attention.query, attention.key, attention.value),
                attention.dense,
                heads=attention.num_attention_heads,
                scale=attention.attention_head_size**-0.5,
            ),
            attention_norm=attention.LayerNorm,
            feed_forward=FeedForwardPart(layer.ffn, layer.activation, layer.ffn_output),
            feed_forward_norm=layer.full_layer_layer_norm,
            # Hugging Face's ALBERT has no dropout after the feed-forward.
            dropout=Dropout(attention_output=attention.output_dropout.p, scores=attention.attention_dropout.p),
            training=layer.training,
        )

    def embed(self, encoder: Any, tokens: PackedTokens) -> Tensor:
        projected: Tensor = encoder.encoder.embedding_hidden_mapping_in(super().embed(encoder, tokens))
        return projected

    def pool(self, encoder: Any, hidden: Tensor) -> Tensor | None:
        return None if encoder.pooler is None else encoder.pooler_activation(encoder.pooler(hidden[:, 0]))

    def shape(self, config: Any) -> EncoderShape:
        return EncoderShape(
            layers=config.num_hidden_layers,
            width=config.hidden_size,
            heads=config.num_attention_heads,
            inner=config.intermediate_size,
            blocks_per_layer=config.inner_group_num,
            layers_per_group=_layers_per_group(config),
        )


def _layers_per_group(config: Any) -> float:
    """Return the layers per group at the depth that the model was trained with, not the depth that was kept."""
    trained: int = (getattr(config, "hashee", None) or {}).get("source_layers", config.num_hidden_layers)
    return trained / int(config.num_hidden_groups)
