"""DistilBERT: BERT's maths under other names, without token types or pooler."""

from typing import Any

from torch import Tensor
from torch.nn import Module
from transformers import DistilBertConfig, DistilBertModel
from transformers.models.distilbert.modeling_distilbert import Embeddings

from hashee.cost.macs import EncoderShape
from hashee.engine.adapter import Adapter, HeadLayers, OnnxLayout, PackedTokens
from hashee.engine.block import Block, Dropout
from hashee.engine.parts import AttentionPart, FeedForwardPart, SeparateProjections


def _masked_lm(model: Any) -> HeadLayers:
    return model.vocab_transform, model.activation, model.vocab_layer_norm, model.vocab_projector


class DistilBertAdapter(Adapter):
    model_type = "distilbert"
    config_class = DistilBertConfig
    encoder_class = DistilBertModel
    summed_embeddings = Embeddings
    token_types = False
    onnx = OnnxLayout(
        classifier=lambda model, encoder: (model.pre_classifier, "ReLU", model.classifier),
        masked_lm=_masked_lm,
    )

    def layers(self, encoder: Any) -> list[Module]:
        return list(encoder.transformer.layer)

    def block(self, layer: Any, number: int) -> Block:
        attention = layer.attention
        return Block(
            layer=number,
            attention=AttentionPart(
                SeparateProjections(attention.q_lin, attention.k_lin, attention.v_lin),
                attention.out_lin,
                heads=attention.n_heads,
                scale=attention.attention_head_size**-0.5,
            ),
            attention_norm=layer.sa_layer_norm,
            feed_forward=FeedForwardPart(layer.ffn.lin1, layer.ffn.activation, layer.ffn.lin2),
            feed_forward_norm=layer.output_layer_norm,
            # Hugging Face's DistilBERT has no dropout after the attention's output projection.
            dropout=Dropout(scores=attention.dropout.p, feed_forward=layer.ffn.dropout.p),
            training=layer.training,
        )

    def embed(self, encoder: Any, tokens: PackedTokens) -> Tensor:
        ids = tokens.ids if tokens.embeds is None else None
        # By position: the name of the second argument differs between versions of transformers.
        embedded: Tensor = encoder.embeddings(ids, tokens.embeds, tokens.positions)
        return embedded

    def shape(self, config: Any) -> EncoderShape:
        return EncoderShape(
            layers=config.n_layers, width=config.dim, heads=config.n_heads, inner=config.hidden_dim, looked_up=True
        )
