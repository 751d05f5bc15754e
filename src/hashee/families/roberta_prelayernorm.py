"""Pre-norm RoBERTa: norms before the sub-layers and one over all states at the end."""

from typing import Any

from torch.nn import Module
from transformers import RobertaPreLayerNormConfig, RobertaPreLayerNormModel

from hashee.families.roberta import RobertaAdapter


class RobertaPreLayerNormAdapter(RobertaAdapter):
    model_type = "roberta-prelayernorm"
    config_class = RobertaPreLayerNormConfig
    encoder_class = RobertaPreLayerNormModel
    # The first layer norms its input once more before it projects.
    summed_embeddings = None
    pre_norm = True

    def norms(self, layer: Any) -> tuple[Module, Module]:
        return layer.attention.LayerNorm, layer.intermediate.LayerNorm

    def final_norm(self, encoder: Any) -> Module | None:
        norm: Module = encoder.LayerNorm
        return norm
