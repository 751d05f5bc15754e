"""BERT, and the families that keep its layer layout."""

from typing import Any, ClassVar

from torch.nn import Module
from transformers import BertConfig, BertModel, PreTrainedConfig, PreTrainedModel
from transformers.models.bert.modeling_bert import BertEmbeddings

from hashee.engine.adapter import Adapter, HeadLayers, OnnxLayout
from hashee.engine.block import Block, Dropout
from hashee.engine.parts import AttentionPart, FeedForwardPart, SeparateProjections


def _masked_lm(model: Any) -> HeadLayers:
    transform = model.cls.predictions.transform
    return transform.dense, transform.transform_act_fn, transform.LayerNorm, model.cls.predictions.decoder


class BertAdapter(Adapter):
    model_type = "bert"
    config_class: ClassVar[type[PreTrainedConfig]] = BertConfig
    encoder_class: ClassVar[type[PreTrainedModel]] = BertModel
    summed_embeddings: ClassVar[type[Module] | None] = BertEmbeddings
    onnx: ClassVar[OnnxLayout | None] = OnnxLayout(
        classifier=lambda model, encoder: (encoder.pooler.dense, "Tanh", model.classifier),
        masked_lm=_masked_lm,
    )
    pre_norm = False

    def norms(self, layer: Any) -> tuple[Module, Module]:
        """Return the norms of the attention and of the feed-forward."""
        return layer.attention.output.LayerNorm, layer.output.LayerNorm

    def block(self, layer: Any, number: int) -> Block:
        attention = layer.attention.self
        attention_norm, feed_forward_norm = self.norms(layer)
        return Block(
            layer=number,
            attention=AttentionPart(
                SeparateProjections(attention.query, attention.key, attention.value),
                layer.attention.output.dense,
                heads=attention.num_attention_heads,
                scale=attention.attention_head_size**-0.5,
            ),
            attention_norm=attention_norm,
            feed_forward=FeedForwardPart(
                layer.intermediate.dense, layer.intermediate.intermediate_act_fn, layer.output.dense
            ),
            feed_forward_norm=feed_forward_norm,
            dropout=Dropout(
                attention_output=layer.attention.output.dropout.p,
                scores=attention.dropout.p,
                feed_forward=layer.output.dropout.p,
            ),
            training=layer.training,
            pre_norm=self.pre_norm,
        )
