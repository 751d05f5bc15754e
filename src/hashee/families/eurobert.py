"""EuroBERT: Llama's layers that attend in both directions, with heads of queries that share keys and values."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.nn import Module
from transformers import EuroBertConfig, EuroBertModel

from hashee.cost.macs import EncoderShape
from hashee.engine.adapter import Adapter, PackedTokens
from hashee.engine.attention import PositionTerms, half_angles
from hashee.engine.block import Block
from hashee.families.llama import llama_block


class EuroBertAdapter(Adapter):
    model_type = "eurobert"
    config_class = EuroBertConfig
    encoder_class = EuroBertModel
    token_types = False
    heads_on_first_row = ("ForSequenceClassification",)

    def reads_first_row(self, model_class: type, config: Any = None) -> bool:
        # By default every token is classified and the mean of all logits taken.
        of_first = config is not None and config.classifier_pooling == "bos"
        return super().reads_first_row(model_class, config) and of_first

    def layers(self, encoder: Any) -> list[Module]:
        return list(encoder.layers)

    def block(self, layer: Any, number: int) -> Block:
        return llama_block(layer, number)

    def embed(self, encoder: Any, tokens: PackedTokens) -> Tensor:
        embedded: Tensor = encoder.embed_tokens(tokens.ids) if tokens.embeds is None else tokens.embeds
        return embedded

    def max_position(self, encoder: Any) -> int:
        return self.max_length(encoder.config)

    def position_terms(
        self, encoder: Any, tokens: PackedTokens, columns: Tensor, hidden: Tensor
    ) -> Mapping[str, PositionTerms]:
        return {"": PositionTerms(rotary=half_angles(encoder.rotary_emb(hidden, tokens.positions)))}

    def final_norm(self, encoder: Any) -> Module | None:
        norm: Module = encoder.norm
        return norm

    def shape(self, config: Any) -> EncoderShape:
        return dataclasses.replace(
            super().shape(config),
            absorbable=False,
            gated=True,
            head_width=config.head_dim,
            key_value_heads=config.num_key_value_heads,
        )
