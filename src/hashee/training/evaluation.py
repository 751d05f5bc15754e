"""Logits of a model for the examples of a split."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hashee.data.batching import Batching, make_batches
from hashee.data.predictions import predictions, scores
from hashee.data.tokenized import Tokenized
from hashee.training.processes import Processes

__all__ = ["logits_for", "predictions", "scores"]

Array = NDArray[Any]


def logits_for(model: Any, tokenized: Tokenized, processes: Processes) -> list[Array]:
    """Return the logits for each example in order, (labels,), or for tags (words, labels) with NaN for truncated words.

    Texts are batched by cost, and the processes share the batches.
    """
    was_training = model.training
    model.eval()
    exit_layers = model.exit_table.exit_layers.numpy() if hasattr(model, "exit_table") else None
    batches = make_batches([row.tolist() for row in tokenized.ids], exit_layers, Batching())
    own: list[tuple[int, Array]] = []
    for indices in batches[processes.rank :: processes.count]:
        inputs = {name: tensor.to(model.device) for name, tensor in tokenized.inputs(indices).items()}
        with torch.no_grad():
            rows = model(**inputs).logits.float().cpu().numpy()
        own += [(index, tokenized.word_logits(index, row)) for index, row in zip(indices, rows, strict=True)]
    model.train(was_training)
    logits: list[Array] = [np.empty(0)] * len(tokenized)
    for index, row in processes.gathered(own):
        logits[index] = row
    return logits
