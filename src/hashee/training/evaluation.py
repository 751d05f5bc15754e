"""Predictions of a model for the examples of a split, with what each of them costs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from hashee.cost.macs import Costs
from hashee.data.batching import Batching, make_batches
from hashee.data.predictions import predictions, scores
from hashee.data.tokenized import Tokenized
from hashee.training.processes import Processes

__all__ = ["Predictions", "for_each_example", "logits_for", "predictions", "scores"]

Array = NDArray[Any]


@dataclass(frozen=True)
class Predictions:
    """What a method predicts for some examples at one operating point, and what each prediction costs."""

    logits: list[Array]
    """(labels,) for each example, or for tags (words, labels) with NaN for truncated words."""
    costs: Costs
    """(examples,) each."""


def logits_for(model: Any, tokenized: Tokenized, processes: Processes) -> list[Array]:
    """Return the logits for each example in order, (labels,), or for tags (words, labels) with NaN for truncated words.

    Texts are batched by cost, and the processes share the batches.
    """

    def run(inputs: Mapping[str, Tensor]) -> Sequence[Array]:
        rows: Array = model(**inputs).logits.float().cpu().numpy()
        return list(rows)

    found = for_each_example(model, tokenized, processes, run)
    return [tokenized.word_logits(index, row) for index, row in enumerate(found)]


def for_each_example(
    model: Any, tokenized: Tokenized, processes: Processes, run: Callable[[Mapping[str, Tensor]], Sequence[Any]]
) -> list[Any]:
    """Return what a function of a batch's inputs says of each example, in order.

    Texts are batched by cost, and the processes share the batches. run: from (batch, longest) tensors by name to one
    result for each row.
    """
    was_training = model.training
    model.eval()
    exit_layers = model.exit_table.exit_layers.numpy() if hasattr(model, "exit_table") else None
    batches = make_batches([row.tolist() for row in tokenized.ids], exit_layers, Batching())
    own: list[tuple[int, Any]] = []
    for indices in batches[processes.rank :: processes.count]:
        inputs = {name: tensor.to(model.device) for name, tensor in tokenized.inputs(indices).items()}
        with torch.no_grad():
            own += zip(indices, run(inputs), strict=True)
    model.train(was_training)
    return [result for _, result in sorted(processes.gathered(own), key=lambda each: each[0])]
