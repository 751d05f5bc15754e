"""RoBERTa, XLM-R and CamemBERT: BERT layers, positions counted after the padding id."""

from typing import Any, ClassVar

from torch import Tensor
from torch.nn import Module
from transformers import (
    CamembertConfig,
    CamembertModel,
    PreTrainedConfig,
    PreTrainedModel,
    RobertaConfig,
    RobertaModel,
    XLMRobertaConfig,
    XLMRobertaModel,
)
from transformers.models.camembert.modeling_camembert import CamembertEmbeddings
from transformers.models.roberta.modeling_roberta import RobertaEmbeddings
from transformers.models.xlm_roberta.modeling_xlm_roberta import XLMRobertaEmbeddings

from hashee.engine.adapter import HeadLayers, OnnxLayout, positions_after_padding
from hashee.families.bert import BertAdapter


def _masked_lm(model: Any) -> HeadLayers:
    head = model.lm_head
    return head.dense, "GELUActivation", head.layer_norm, head.decoder


class RobertaAdapter(BertAdapter):
    model_type = "roberta"
    config_class: ClassVar[type[PreTrainedConfig]] = RobertaConfig
    encoder_class: ClassVar[type[PreTrainedModel]] = RobertaModel
    summed_embeddings: ClassVar[type[Module] | None] = RobertaEmbeddings
    onnx: ClassVar[OnnxLayout | None] = OnnxLayout(
        classifier=lambda model, encoder: (model.classifier.dense, "Tanh", model.classifier.out_proj),
        masked_lm=_masked_lm,
        positions_after_padding=True,
    )

    def positions(self, encoder: Any, input_ids: Tensor) -> Tensor:
        return positions_after_padding(input_ids, encoder.embeddings.padding_idx)

    def max_length(self, config: Any) -> int:
        # Position ids start after the padding id.
        return int(config.max_position_embeddings - config.pad_token_id - 1)


class XLMRobertaAdapter(RobertaAdapter):
    model_type = "xlm-roberta"
    config_class = XLMRobertaConfig
    encoder_class = XLMRobertaModel
    summed_embeddings = XLMRobertaEmbeddings


class CamembertAdapter(RobertaAdapter):
    model_type = "camembert"
    config_class = CamembertConfig
    encoder_class = CamembertModel
    summed_embeddings = CamembertEmbeddings
