"""What linear predictors read: mean word embeddings, and the hidden states of a frozen backbone."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hashee.data import Examples
from hashee.data.tokenized import Tokenized
from hashee.study.difficulty.predictor import PredictorSettings
from hashee.study.difficulty.sampling import Splits
from hashee.training.backbone import Backbone, open_backbone
from hashee.training.evaluation import for_each_example
from hashee.training.processes import current_processes

Array = NDArray[Any]


def backbone_of(splits: Splits, settings: PredictorSettings) -> Backbone:
    """Open the backbone for an output per layer."""
    return open_backbone(settings.backbone, splits.task, None)


def tokenized_by(backbone: Backbone, settings: PredictorSettings, examples: Examples) -> Tokenized:
    """Tokenize examples as the backbone reads them."""
    return backbone.encoder(settings.max_length)(examples)


def mean_embeddings(backbone: Backbone, model: Any, tokenized: Tokenized) -> Array:
    """Return the mean embedding of each text's tokens, special ones left out: (texts, width); of words, of each word.

    Word embeddings are the backbone's own, before positions are added. Words that were truncated have NaN.
    """
    table = model.get_input_embeddings().weight.detach().float().cpu().numpy()
    special = np.array(sorted(backbone.tokenizer.all_special_ids), dtype=np.int64)
    if tokenized.starts is None:
        return np.stack([table[_or_all(row, ~np.isin(row, special))].mean(axis=0) for row in tokenized.ids])
    return np.concatenate(
        [_word_means(table, *each, special) for each in zip(tokenized.ids, tokenized.starts, strict=True)]
    )


def _or_all(row: Array, kept: Array) -> Array:
    return row[kept] if kept.any() else row


def _word_means(table: Array, ids: Array, starts: Array, special: Array) -> Array:
    """Return the mean embedding of the tokens of each word: (words, width)."""
    found = np.full((len(starts), table.shape[1]), np.nan, dtype=np.float32)
    bounds = sorted({int(start) for start in starts if start >= 0} | {len(ids)})
    for word, start in enumerate(starts.tolist()):
        if start >= 0:
            end = bounds[bounds.index(start) + 1]
            tokens = ids[start:end]
            found[word] = table[_or_all(tokens, ~np.isin(tokens, special))].mean(axis=0)
    return found


def layer_states(model: Any, tokenized: Tokenized) -> Array:
    """Return hidden states after each layer of a model on the packed engine: (instances, layers, width).

    Of a text, the state of its first token, which BERxiT's module reads; of words, of their first tokens, NaN for words
    that were truncated.
    """
    words = tokenized.starts is not None

    def run(inputs: Mapping[str, Tensor]) -> list[Array]:
        state, states = model.hashed_encoder.start(reads="all", **inputs), []
        while not state.done:
            state = state.advance()
            states.append(state.unpacked() if words else state.first())
        # (batch, layers, width), or (batch, longest, layers, width)
        rows: Array = torch.stack(states, dim=-2).float().cpu().numpy()
        return list(rows)

    found = for_each_example(model, tokenized, current_processes(), run)
    if tokenized.starts is None:
        return np.stack(found)
    picked = []
    for row, starts in zip(found, tokenized.starts, strict=True):
        of_words = np.full((len(starts), *row.shape[1:]), np.nan, dtype=np.float32)
        of_words[starts >= 0] = row[starts[starts >= 0]]
        picked.append(of_words)
    return np.concatenate(picked)
