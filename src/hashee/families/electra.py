"""ELECTRA: BERT layers, embeddings that may be narrower than the layers."""

import dataclasses
from typing import Any

from torch import Tensor
from transformers import ElectraConfig, ElectraModel
from transformers.models.electra.modeling_electra import ElectraEmbeddings

from hashee.cost.macs import EncoderShape
from hashee.engine.adapter import HeadLayers, OnnxLayout, PackedTokens
from hashee.families.bert import BertAdapter


def _classifier(model: Any, encoder: Any) -> HeadLayers:
    head = model.classifier
    return head.dense, head.activation, head.out_proj


def _masked_lm(model: Any) -> HeadLayers:
    head = model.generator_predictions
    return head.dense, head.activation, head.LayerNorm, model.generator_lm_head


class ElectraAdapter(BertAdapter):
    model_type = "electra"
    config_class = ElectraConfig
    encoder_class = ElectraModel
    summed_embeddings = ElectraEmbeddings
    onnx = OnnxLayout(
        classifier=_classifier,
        masked_lm=_masked_lm,
        projection=lambda encoder: getattr(encoder, "embeddings_project", None),
    )

    def shape(self, config: Any) -> EncoderShape:
        return dataclasses.replace(super().shape(config), looked_up=config.embedding_size == config.hidden_size)

    def embed(self, encoder: Any, tokens: PackedTokens) -> Tensor:
        embedded = super().embed(encoder, tokens)
        # The projection exists only when the two widths differ.
        return encoder.embeddings_project(embedded) if hasattr(encoder, "embeddings_project") else embedded
