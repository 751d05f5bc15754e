"""Predictions of a model for the examples of a split, with what each of them costs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from hashee.cost.generation import GenerationCosts
from hashee.cost.macs import Costs
from hashee.data.batching import Batching, make_batches
from hashee.data.predictions import predictions, scores
from hashee.data.summaries import TokenizedSummaries
from hashee.data.tokenized import Tokenized
from hashee.hf.generation_flops import count_generation
from hashee.hf.writing import Written, text_of, write_batch
from hashee.training.processes import Processes

__all__ = ["Predictions", "WritingCosts", "for_each_example", "logits_for", "predictions", "scores", "write_summaries"]

Array = NDArray[Any]


@dataclass(frozen=True)
class Predictions:
    """What a method predicts for some examples at one operating point, and what each prediction costs."""

    logits: list[Any]
    """(labels,) for each example, or for tags (words, labels) with NaN for truncated words; or the text written."""
    costs: Costs
    """(examples,) each."""
    writing: "WritingCosts | None" = None
    """What writing texts costs, by part."""


@dataclass(frozen=True)
class WritingCosts:
    """What it cost to read documents and to write texts, in operations and in time."""

    costs: GenerationCosts
    dense: GenerationCosts
    """Of the model without exits, at its own depth, for the same texts."""
    ids: list[list[int]]
    """The texts that were written, see `Written`."""
    encoder_seconds: float
    decoder_seconds: float


def logits_for(model: Any, tokenized: Tokenized, processes: Processes) -> list[Any]:
    """Return the logits for each example in order, (labels,), or for tags (words, labels) with NaN for truncated words.

    Where texts are written, these. Texts are batched by cost, and the processes share the batches.
    """
    if isinstance(tokenized, TokenizedSummaries):
        return [text_of(ids, tokenized.tokenizer) for ids in _written(model, tokenized, processes).ids]

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


def write_summaries(model: Any, tokenized: TokenizedSummaries, processes: Processes) -> Predictions:
    """Write a summary of each document, and count what that costs for the lengths that were written."""
    written = _written(model, tokenized, processes)
    beams = tokenized.writing.num_beams or model.generation_config.num_beams or 1
    count = count_generation(model, [row.tolist() for row in tokenized.ids], written.ids, num_beams=beams)
    texts = [text_of(ids, tokenized.tokenizer) for ids in written.ids]
    seconds = (written.encoder_seconds, written.decoder_seconds)
    return Predictions(
        texts, count.with_exits.total, WritingCosts(count.with_exits, count.dense, written.ids, *seconds)
    )


def _written(model: Any, tokenized: TokenizedSummaries, processes: Processes) -> Written:
    """Write a text for each document, in their order; the seconds are those of this process."""
    seconds = [0.0, 0.0]

    def run(inputs: Mapping[str, Tensor]) -> Sequence[list[int]]:
        batch = write_batch(model, inputs, tokenized.writing)
        seconds[0] += batch.encoder_seconds
        seconds[1] += batch.decoder_seconds
        return batch.ids

    return Written(for_each_example(model, tokenized, processes, run), *seconds)
