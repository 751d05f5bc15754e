"""Writing texts with a seq2seq model: batched by cost, in order, encoder and decoder timed apart."""

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from tqdm import tqdm  # type: ignore[import-untyped]

from hashee.data.batching import Batching, make_batches, padded_inputs
from hashee.data.tokenizing import TextTokenizer
from hashee.data.writing import Writing
from hashee.errors import UnsupportedModel
from hashee.families.adapters import adapter_for

WINDOW = 256
"""Documents that are sorted by cost together; what a kill may cost is at most so many."""


@dataclass(frozen=True)
class Written:
    """The texts that a model wrote for a batch."""

    ids: list[list[int]]
    """Of each text as `generate` returns them, from the token that decoding starts with to the end of text."""
    encoder_seconds: float
    decoder_seconds: float


@dataclass(frozen=True)
class WrittenText:
    """What was written for one document."""

    text: str
    truncated: bool = False
    """Whether the document was longer than the model reads."""


def check_writes(config: Any, source: str) -> None:
    """Raise unless a model with this config reads a text and writes another one."""
    name = (config.architectures or [config.model_type])[0]
    if not config.is_encoder_decoder:
        continues = name.endswith(("ForCausalLM", "LMHeadModel"))
        what = "only continues texts" if continues else "reads texts and writes none"
        remedy = "name a seq2seq model; hashee fit --kind summarization makes one from an encoder"
        raise UnsupportedModel(f"the {name} in {source} {what}; {remedy}")
    if not name.endswith(("ForConditionalGeneration", "MTModel")):
        raise UnsupportedModel(f"the {name} in {source} has no head to write with; name a model that was fitted to")


def write_batch(model: Any, inputs: Mapping[str, Tensor], writing: Writing) -> Written:
    """Write a text for each row of a batch. inputs: (batch, longest) each, on the model's device."""
    began = time.perf_counter()
    with torch.no_grad(), _timed(model.get_encoder()) as calls:
        rows = model.generate(**inputs, **writing.options())
    seconds = time.perf_counter() - began
    ends = model.config.eos_token_id
    ends = ends if isinstance(ends, list) else [ends]
    return Written([_up_to_end(row, ends) for row in rows.tolist()], sum(calls), seconds - sum(calls))


@contextmanager
def _timed(module: Module) -> Iterator[list[float]]:
    """List the seconds of every call of a module while the context lasts.

    Models prepare what their encoders read (CPT's needs token types), so `generate` calls them, and nobody else.
    """
    began, calls = [0.0], []

    def start(*_: Any) -> None:
        began[0] = time.perf_counter()

    def stop(*_: Any) -> None:
        calls.append(time.perf_counter() - began[0])

    handles = (module.register_forward_pre_hook(start), module.register_forward_hook(stop))
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def longest_document(model: Any, tokenizer: Any) -> int:
    """Return the most tokens of a document that are read."""
    return int(min(adapter_for(model.config).max_length(model.config), tokenizer.model_max_length))


def text_of(ids: list[int], tokenizer: Any) -> str:
    """Return what ids spell, without special tokens."""
    text: str = tokenizer.decode(ids, skip_special_tokens=True)
    return text.strip()


def write(
    model: Any, tokenizer: Any, documents: Iterable[str], writing: Writing, batching: Batching | None = None
) -> Iterator[WrittenText]:
    """Yield what a model writes for each document, in order; an empty document is answered with an empty text.

    Documents are read a window at a time and batched by what they cost, so any number of them may pass through.
    """
    batching = batching or Batching(window=WINDOW)
    model.eval()
    tokenize = TextTokenizer(tokenizer, longest_document(model, tokenizer))
    exit_layers = model.exit_table.exit_layers.numpy() if hasattr(model, "exit_table") else None
    source = iter(documents)
    first = 0
    with tqdm(desc="writing", unit=" texts", disable=None) as bar:
        while window := list(islice(source, batching.window)):
            found = [WrittenText("")] * len(window)
            kept = [number for number, document in enumerate(window) if document.strip()]
            texts = [window[number] for number in kept]
            rows = tokenize(texts, first)["input_ids"] if texts else []
            truncated = tokenize.truncated(texts, rows)
            for batch in make_batches(rows, exit_layers, batching) if rows else []:
                arrays = padded_inputs({"input_ids": rows}, batch, tokenizer.pad_token_id)
                inputs = {name: torch.from_numpy(array).to(model.device) for name, array in arrays.items()}
                for index, ids in zip(batch, write_batch(model, inputs, writing).ids, strict=True):
                    found[kept[index]] = WrittenText(text_of(ids, tokenizer), truncated[index])
                bar.update(len(batch))
            first += len(window)
            yield from found


def _up_to_end(ids: list[int], ends: list[int]) -> list[int]:
    """Return ids up to the first end of text; decoding may start with the very token that ends a text."""
    last = next((index for index, token in enumerate(ids) if index and token in ends), len(ids) - 1)
    return ids[: last + 1]
