"""The algorithm as published, from the paper: each layer gathers the active tokens of every example, pads, computes,
and puts them back among the tokens that have left. Two things are kinder than the paper: padding is not attended, and
attention runs in torch's fused kernel."""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from hashee.bench.baselines import Outputs, RunBatch
from hashee.bench.baselines.transformers_baselines import dense_model, tensors
from hashee.bench.batches import Padded
from hashee.bench.protocol import ClockJob
from hashee.tables.table import ExitTable


def load(job: ClockJob) -> RunBatch:
    """Return the published algorithm on the model under test as a function of padded batches."""
    model = dense_model(job)
    exit_layers = ExitTable.load(Path(job.table)).exit_layers

    def run(batch: Padded) -> Outputs:
        with torch.inference_mode():
            hidden = encode(model.bert, exit_layers, **tensors(batch))
            logits: Outputs = model.classifier(model.bert.pooler(hidden)).numpy()
        return logits

    return run


def encode(
    bert: Any, exit_layers: Tensor, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
) -> Tensor:
    """Return the last hidden states of a BertModel with exits.

    exit_layers: (vocabulary,); the others (batch, length). Returns (batch, length, width); padding holds embeddings.
    """
    hidden: Tensor = bert.embeddings(input_ids=input_ids, token_type_ids=token_type_ids)
    # Padding leaves before the first layer.
    exits = exit_layers[input_ids].masked_fill(attention_mask == 0, 0)
    keys = attention_mask.bool()[:, None, None, :]
    for number, layer in enumerate(bert.encoder.layer, start=1):
        active_rows = [(row >= number).nonzero().squeeze(1) for row in exits]
        if not any(len(rows) for rows in active_rows):
            break
        active = pad_sequence(
            [states[rows] for states, rows in zip(hidden, active_rows, strict=True)], batch_first=True
        )
        updated = update(layer, active, hidden, keys)
        hidden = torch.stack(
            [
                states.index_copy(0, rows, new[: len(rows)])
                for states, rows, new in zip(hidden, active_rows, updated, strict=True)
            ]
        )
    return hidden


def update(layer: Any, active: Tensor, hidden: Tensor, keys: Tensor) -> Tensor:
    """Run one BertLayer with the active tokens as queries and all tokens as keys and values.

    active: (batch, most active, width); hidden: (batch, length, width); keys: (batch, 1, 1, length), True where a
    token is real. Returns (batch, most active, width).
    """
    attention = layer.attention.self
    heads = attention.num_attention_heads

    def split(states: Tensor) -> Tensor:
        by_head: Tensor = states.unflatten(-1, (heads, -1)).transpose(1, 2)
        return by_head

    context = F.scaled_dot_product_attention(
        split(attention.query(active)), split(attention.key(hidden)), split(attention.value(hidden)), attn_mask=keys
    )
    attended: Tensor = layer.attention.output(context.transpose(1, 2).flatten(2), active)
    updated: Tensor = layer.output(layer.intermediate(attended), attended)
    return updated
