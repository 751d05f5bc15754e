"""Answers of a model to the examples of a split, and how good they are."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hashee.data.batching import Batching, make_batches
from hashee.data.encoding import Encoded
from hashee.data.predictions import predictions, scores
from hashee.training.processes import Processes

__all__ = ["logits_for", "predictions", "scores"]

Array = NDArray[Any]


def logits_for(model: Any, encoded: Encoded, processes: Processes) -> list[Array]:
    """Return the logits for each example in order, (labels,), or for tags (words, labels) with NaN for words cut off.

    Texts are batched by what they cost, and the processes share the batches.
    """
    was_training = model.training
    model.eval()
    exit_layers = model.exit_table.exit_layers.numpy() if hasattr(model, "exit_table") else None
    batches = make_batches([row.tolist() for row in encoded.ids], exit_layers, Batching())
    mine: list[tuple[int, Array]] = []
    for places in batches[processes.rank :: processes.count]:
        inputs = {name: tensor.to(model.device) for name, tensor in encoded.inputs(places).items()}
        with torch.no_grad():
            logits = model(**inputs).logits.float().cpu().numpy()
        mine += [(place, _for_words(row, encoded, place)) for place, row in zip(places, logits, strict=True)]
    model.train(was_training)
    answers: list[Array] = [np.empty(0)] * len(encoded)
    for place, answer in processes.gathered(mine):
        answers[place] = answer
    return answers


def _for_words(logits: Array, encoded: Encoded, place: int) -> Array:
    """Pick the logits of each word's first token; logits for texts stay as they are."""
    if encoded.starts is None:
        return logits
    starts = encoded.starts[place]
    picked = np.full((len(starts), logits.shape[1]), np.nan, dtype=np.float32)
    picked[starts >= 0] = logits[starts[starts >= 0]]
    return picked
