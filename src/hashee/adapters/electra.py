"""ELECTRA: BERT layers, embeddings that may be narrower than the layers."""

from typing import Any

from torch import Tensor
from transformers import ElectraConfig, ElectraModel

from hashee.adapters.adapter import Tokens
from hashee.adapters.bert import BertAdapter


class ElectraAdapter(BertAdapter):
    model_type = "electra"
    config_class = ElectraConfig
    encoder_class = ElectraModel

    def embed(self, encoder: Any, tokens: Tokens) -> Tensor:
        embedded = super().embed(encoder, tokens)
        # The projection exists only when the two widths differ.
        return encoder.embeddings_project(embedded) if hasattr(encoder, "embeddings_project") else embedded
