"""The encoder of Marian: BART's layers over sinusoidal positions, without a norm of the embeddings."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor
from transformers import MarianConfig
from transformers.models.marian.modeling_marian import MarianEncoder

from hashee.engine.adapter import PackedTokens
from hashee.families.bart import BartAdapter


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
