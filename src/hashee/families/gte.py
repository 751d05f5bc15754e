"""GTE (gte-multilingual, gte-en-v1.5): NomicBERT's layers with biases and dropout inside the feed-forward."""

from typing import Any

from transformers import GteConfig, GteModel

from hashee.families.nomic_bert import NomicBertAdapter


class GteAdapter(NomicBertAdapter):
    model_type = "gte"
    config_class = GteConfig
    encoder_class = GteModel

    def activation_dropout(self, layer: Any) -> float:
        probability: float = layer.mlp.dropout.p
        return probability
