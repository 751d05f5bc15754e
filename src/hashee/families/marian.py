"""Marian: BART's layers over sinusoidal positions, without a norm of the embeddings."""

import dataclasses
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.nn import Module
from transformers import MarianConfig
from transformers.models.marian.modeling_marian import (
    MarianDecoder,
    MarianEncoder,
    MarianSinusoidalPositionalEmbedding,
)

from hashee.cost.generation import DecoderShape
from hashee.engine.adapter import PackedTokens
from hashee.families.bart import BartAdapter, BartDecoderAdapter


class MarianAdapter(BartAdapter):
    model_type = "marian"
    config_class = MarianConfig
    encoder_class = MarianEncoder

    def embed(self, encoder: Any, tokens: PackedTokens) -> Tensor:
        # Marian scales what it looks up, and takes word embeddings that a caller gives as they are.
        words = encoder.embed_tokens(tokens.ids) * encoder.embed_scale if tokens.embeds is None else tokens.embeds
        positions = encoder.embed_positions(tokens.ids.shape, position_ids=tokens.positions[0])
        return F.dropout(words + positions, encoder.dropout, encoder.training)

    def max_position(self, encoder: Any) -> int:
        rows: int = encoder.embed_positions.num_embeddings
        return rows

    def freeze_computed_(self, model: Module) -> None:
        # transformers makes sinusoids that do not learn, but those of a model that it has loaded would.
        for module in model.modules():
            if isinstance(module, MarianSinusoidalPositionalEmbedding):
                module.weight.requires_grad_(False)


class MarianDecoderAdapter(BartDecoderAdapter):
    model_type = "marian"
    config_class = MarianConfig
    decoder_class = MarianDecoder

    def embed(self, decoder: Any, ids: Tensor, words: Tensor | None, positions: Tensor) -> Tensor:
        # Unlike the encoder, the decoder scales word embeddings that a caller gives too.
        looked_up = (decoder.embed_tokens(ids) if words is None else words) * decoder.embed_scale
        embedded = looked_up + decoder.embed_positions(ids.shape, position_ids=positions[0])
        return F.dropout(embedded, decoder.dropout, decoder.training)

    def max_position(self, decoder: Any) -> int:
        rows: int = decoder.embed_positions.num_embeddings
        return rows

    def shape(self, config: Any) -> DecoderShape:
        return dataclasses.replace(super().shape(config), vocabulary=config.decoder_vocab_size)
