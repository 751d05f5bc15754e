"""A seq2seq model whose decoder scores the vocabulary after every layer, as depth-adaptive Transformers do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hashee.cost.generation import DecoderShape, GenerationCosts, decoder_costs
from hashee.cost.macs import Costs, Counts
from hashee.data.summaries import TokenizedSummaries
from hashee.engine.decoder import Decide
from hashee.export.loading import load
from hashee.families.adapters import adapter_for, decoder_adapter_for
from hashee.hf.convert import convert
from hashee.hf.generation_flops import count_generation
from hashee.hf.writing import text_of, write_batch
from hashee.study.exit_rules import ConfidenceAbove
from hashee.study.multi_exit import MultiExitOutput
from hashee.study.wrapping import ModelAround
from hashee.tables.table import ExitTable
from hashee.training.evaluation import Predictions, WritingCosts, for_each_example
from hashee.training.outputs import ExitOutputs
from hashee.training.processes import Processes


class DepthAdaptiveModel(ModelAround):
    """A model with the same head over the vocabulary after every decoder layer.

    model: with tables by which nothing exits, of encoder and decoder, so that both run on the packed engine.
    """

    @classmethod
    def of(cls, dense: Any) -> DepthAdaptiveModel:
        """Return a dense seq2seq model as one that may exit after every decoder layer; parameters are shared."""
        adapter = decoder_adapter_for(dense.config)
        assert adapter is not None  # backbones whose decoders are not known are refused
        vocabulary = dense.get_input_embeddings().num_embeddings
        never = ExitTable.never(vocabulary, adapter_for(dense.config).shape(dense.config).layers)
        decoder_never = ExitTable.never(vocabulary, adapter.shape(dense.config).layers)
        return cls(convert(dense, never, decoder_table=decoder_never))

    @classmethod
    def from_folder(cls, folder: Path) -> DepthAdaptiveModel:
        """Open what `save_pretrained` wrote, in eval mode."""
        return cls(load(folder)).eval()

    @property
    def generation_config(self) -> Any:
        """How texts are written unless a caller says otherwise."""
        return self.model.generation_config

    @property
    def decoder_exit_table(self) -> ExitTable:
        """The table by which no position exits."""
        table: ExitTable = self.model.decoder_exit_table
        return table

    @property
    def shape(self) -> DecoderShape:
        """The sizes of the decoder."""
        return self.model.hashed_decoder.decoder_adapter.shape(self.config)  # type: ignore[no-any-return]

    def get_encoder(self) -> Any:
        """Return the encoder, which is timed apart."""
        return self.model.get_encoder()

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Write as transformers does, with its cache."""
        return self.model.generate(*args, **kwargs)

    def save_pretrained(self, folder: str | Path) -> None:
        """Save the model; the heads of all layers are its own."""
        self.model.save_pretrained(folder)

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]  # torch overloads it
        """Return every tensor once: word embeddings are shared, and checkpoints hold no tensor twice."""
        found: dict[str, Any] = super().state_dict(*args, **kwargs)
        seen: set[int] = set()
        for name, tensor in list(found.items()):
            if tensor.numel() and tensor.data_ptr() in seen:
                del found[name]
            seen.add(tensor.data_ptr())
        return found

    def score(self, states: Tensor) -> Tensor:
        """Score the vocabulary. states: (..., width) after any layer, without the final norm. Returns (..., tokens)."""
        decoder = self.model.hashed_decoder
        norm = decoder.decoder_adapter.final_norm(decoder)
        logits: Tensor = self.model.get_output_embeddings()(states if norm is None else norm(states))
        bias = getattr(self.model, "final_logits_bias", None)
        return logits if bias is None else logits + bias[0]

    def forward(self, **inputs: Tensor) -> MultiExitOutput:
        """Return the scores after every decoder layer: (batch, targets, vocabulary) each."""
        found = self.model(**inputs, output_hidden_states=True, use_cache=False)
        states = found.decoder_hidden_states[1:-1]
        exits = [ExitOutputs(number + 1, self.score(state)) for number, state in enumerate(states)]
        return MultiExitOutput((*exits, ExitOutputs(len(states) + 1, found.logits)))

    @contextmanager
    def exiting_at(self, threshold: float) -> Iterator[None]:
        """Let positions exit, while the context lasts, where a token is as likely as the threshold."""
        with self._deciding(ConfidentExit(self, threshold)):
            yield

    @torch.no_grad()
    def exit_layers(
        self, inputs: Mapping[str, Tensor], written: Sequence[Sequence[int]], threshold: float
    ) -> list[Counts]:
        """Return where each position exits that is read to write a text: (tokens but the last,) for each text.

        inputs: (batch, longest) each; written: ids as `generate` returns them. All positions run at once, which is what
        steps with a cache compute.
        """
        lengths = [len(ids) - 1 for ids in written]
        rows = torch.zeros(len(written), max(*lengths, 1), dtype=torch.long, device=self.device)
        for row, ids in zip(rows, written, strict=True):
            row[: len(ids) - 1] = torch.tensor(ids[:-1], device=self.device)
        found = torch.full_like(rows, self.shape.layers)
        rule = ConfidentExit(self, threshold)

        def recorded(layer: int, hidden: Tensor, exits: Tensor) -> Tensor:
            nonlocal found
            found = rule(layer, hidden, exits)
            return found

        with self._deciding(recorded):
            self.model(**inputs, decoder_input_ids=rows, use_cache=False)
        return [row[:length].cpu().numpy() for row, length in zip(found, lengths, strict=True)]

    @contextmanager
    def _deciding(self, decide: Decide) -> Iterator[None]:
        decoder = self.model.hashed_decoder
        decoder.decide = decide
        try:
            yield
        finally:
            decoder.decide = None


@dataclass(frozen=True)
class ConfidentExit:
    """Confidence thresholding: a position exits where the likeliest token is as likely as a threshold."""

    model: DepthAdaptiveModel
    threshold: float

    def __call__(self, layer: int, hidden: Tensor, exits: Tensor) -> Tensor:
        """Ask the positions that are to go on. hidden: (batch, length, width); exits: (batch, length), as returned."""
        asked = exits > layer
        outputs = ExitOutputs(layer, self.model.score(hidden[asked]))
        sure, _ = ConfidenceAbove(self.threshold)(outputs, None)
        decided = exits.clone()
        decided[asked] = torch.where(sure, layer, exits[asked])
        return decided


def asked_layers(exits: Counts, layers: int) -> Counts:
    """Return after how many layers a position was asked: up to its exit, but never after the last. (positions,)"""
    return np.minimum(exits, layers - 1)


def adaptive_costs(
    model: DepthAdaptiveModel, encoder: Costs, exits: Sequence[Counts], sources: Counts, beams: int
) -> GenerationCosts:
    """Count what each text costs: layers, and the vocabulary scored after every layer that was asked.

    Deciding is part of the decoder, as internal classifiers are part of encoders. Scoring after the last layer, which
    every model ends with, is the head, as everywhere; positions that exit before have no other scores.
    """
    shape = model.shape
    scored = shape.width * shape.vocabulary
    costs = decoder_costs(shape, exits, sources)
    deciding = np.asarray([int(asked_layers(each, shape.layers).sum()) for each in exits], dtype=np.int64) * scored
    head = np.asarray([int((each == shape.layers).sum()) for each in exits], dtype=np.int64) * scored
    decoder = Costs(beams * (costs.executed + deciding), beams * (costs.paper + deciding))
    return GenerationCosts(encoder, decoder, beams * head)


def write_adaptively(
    model: DepthAdaptiveModel, tokenized: TokenizedSummaries, processes: Processes, threshold: float
) -> Predictions:
    """Write a text for each document with exits by confidence, and count what that costs."""
    seconds = [0.0, 0.0]

    def run(inputs: Mapping[str, Tensor]) -> list[tuple[list[int], Counts]]:
        with model.exiting_at(threshold):
            batch = write_batch(model, inputs, tokenized.writing)
        seconds[0] += batch.encoder_seconds
        seconds[1] += batch.decoder_seconds
        return list(zip(batch.ids, model.exit_layers(inputs, batch.ids, threshold), strict=True))

    found = for_each_example(model, tokenized, processes, run)
    ids, exits = [each for each, _ in found], [each for _, each in found]
    beams = tokenized.writing.num_beams or model.generation_config.num_beams or 1
    whole = count_generation(model, [row.tolist() for row in tokenized.ids], ids, num_beams=beams)
    costs = adaptive_costs(model, whole.with_exits.encoder, exits, tokenized.lengths, beams)
    texts = [text_of(each, tokenized.tokenizer) for each in ids]
    return Predictions(texts, costs.total, WritingCosts(costs, whole.dense, ids, *seconds))
