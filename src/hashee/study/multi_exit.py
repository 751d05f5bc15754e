"""An encoder on the packed blocks with a classifier after every layer: what all instance-level methods run on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from hashee.engine.encoder import EncoderState, Reads
from hashee.errors import CheckpointError, InputError, UnsupportedModel
from hashee.export.loading import load
from hashee.files import replaced_atomically
from hashee.study.exit_rules import ExitRule
from hashee.study.wrapping import ModelAround
from hashee.training.outputs import ExitOutputs

_ACTIVATIONS = {"Tanh": torch.tanh, "ReLU": torch.relu}
EXITS = "exits.safetensors"
"""File of the internal classifiers, beside the model's own."""
DESCRIPTION = "exits.json"


class MeanClassifier(nn.Module):
    """A classifier of the shape of BERT's head that reads the mean of all states.

    The papers' classifiers read the first token, which says nothing in the lower layers of models that were pretrained
    to have their states averaged: after a few passes, classifiers of it are still constant there.
    """

    reads: Reads = "all"

    def __init__(self, width: int, labels: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.out = nn.Linear(width, labels)

    def forward(self, state: EncoderState) -> Tensor:
        """Return the logits of the remaining sequences: (sequences, labels)."""
        logits: Tensor = self.out(torch.tanh(self.dense(mean_of(state))))
        return logits

    def macs(self, length: int) -> int:
        """Return the multiply-accumulates for one sequence; sums over its tokens count as activations do: not."""
        return int(self.dense.weight.numel() + self.out.weight.numel())


class AttentiveClassifier(nn.Module):
    """FastBERT's classifier: narrow the states, let them attend to each other, read the first."""

    reads: Reads = "all"

    def __init__(self, width: int, labels: int, inner: int = 128, heads: int = 2) -> None:
        super().__init__()
        self.narrow = nn.Linear(width, inner)
        self.attention = nn.MultiheadAttention(inner, heads, batch_first=True)
        self.dense = nn.Linear(inner, inner)
        self.out = nn.Linear(inner, labels)

    def forward(self, state: EncoderState) -> Tensor:
        """Return the logits of the remaining sequences: (sequences, labels)."""
        rows, present = state.tokens_by_sequence()
        keys = self.narrow(state.hidden)[rows]
        # The first token is all that is read afterwards, so it is the only query.
        query = self.narrow(state.first())[:, None]
        seen, _ = self.attention(query, keys, keys, key_padding_mask=~present, need_weights=False)
        logits: Tensor = self.out(torch.tanh(self.dense(seen[:, 0])))
        return logits

    def macs(self, length: int) -> int:
        """Return the multiply-accumulates for one sequence of so many tokens."""
        width, inner = self.narrow.in_features, self.narrow.out_features
        per_token = width * inner + 2 * inner * inner + 2 * inner
        return length * per_token + width * inner + 3 * inner * inner + inner * self.out.out_features


Classifier = type[MeanClassifier] | type[AttentiveClassifier]
CLASSIFIERS: dict[str, Classifier] = {each.__name__: each for each in (MeanClassifier, AttentiveClassifier)}
"""By the name that folders have them under."""


@dataclass(frozen=True)
class MultiExitOutput:
    """What a model with a classifier after every layer says of a batch."""

    exits: tuple[ExitOutputs, ...]
    """Of each layer, in the order of the batch."""

    @property
    def logits(self) -> Tensor:
        """The last layer's: (batch, labels)."""
        return self.exits[-1].logits


class MultiExitModel(ModelAround):
    """A sequence classifier whose internal classifiers answer after every layer; the last is the model's own head."""

    def __init__(
        self,
        model: Any,
        classifiers: nn.ModuleList,
        certainty: nn.Linear | None = None,
        tolerance: float | None = None,
        moves_states: bool = True,
    ) -> None:
        """Put classifiers on a model for sequences with a table, `ExitTable.never` for one without token exits.

        classifiers: one for each layer but the last, or for all of them where the model's own head is not used.
        tolerance: for scores, how far predictions may differ and still count as the same. moves_states: in training,
        whether what internal classifiers learn changes the encoder as well.
        """
        super().__init__(model)
        self.tolerance = tolerance
        self.moves_states = moves_states
        self.classifiers = classifiers
        self.certainty = certainty
        if len(classifiers) not in (self.layers - 1, self.layers):
            raise InputError(f"a model of {self.layers} layers cannot have {len(classifiers)} internal classifiers")

    @property
    def layers(self) -> int:
        """Layers of the encoder."""
        return int(self.model.exit_table.num_layers)

    @property
    def reads(self) -> Reads:
        """Which rows are read after the last layer."""
        if len(self.classifiers) < self.layers:
            return "first" if self.model.hashed_encoder.reads_first_row else "all"
        last: Any = self.classifiers[-1]
        reads: Reads = last.reads
        return reads

    def start(self, inputs: Mapping[str, Tensor]) -> EncoderState:
        """Embed a batch, ready for the first layer."""
        state: EncoderState = self.model.hashed_encoder.start(reads=self.reads, **inputs)
        return state

    def exit(self, state: EncoderState) -> ExitOutputs:
        """Return what the classifier after the layer that has just run says of the remaining sequences."""
        layer = state.layer
        if layer > len(self.classifiers):
            logits = apply_head(head_of(self.model), state.first(), head_dropout(self.config) if self.training else 0.0)
        else:
            read = state if self.moves_states else replace(state, hidden=state.hidden.detach())
            logits = self.classifiers[layer - 1](read)
        certainty = None
        if self.certainty is not None:
            # After the last layer, of which the head may read the first rows alone, everyone leaves.
            asked = layer <= len(self.classifiers)
            certainty = (
                torch.sigmoid(self.certainty(mean_of(state))).squeeze(-1) if asked else logits.new_ones(len(logits))
            )
        return ExitOutputs(layer, logits, certainty)

    def forward(self, **inputs: Tensor) -> MultiExitOutput:
        """Run all layers and all classifiers. inputs: (batch, longest) each."""
        # A frozen encoder needs no gradients, which makes training classifiers alone several times cheaper.
        learns = torch.is_grad_enabled() and any(weight.requires_grad for weight in self.model.parameters())
        with torch.set_grad_enabled(learns):
            states = [self.start(inputs)]
            while not states[-1].done:
                states.append(states[-1].advance())
        return MultiExitOutput(tuple(self.exit(state) for state in states[1:]))

    def leave(self, inputs: Mapping[str, Tensor], rule: ExitRule) -> tuple[Tensor, Tensor]:
        """Run a batch from which sequences leave by a rule. Returns logits (batch, labels), exit layers (batch,)."""
        state = self.start(inputs)
        batch = inputs["input_ids"].shape[0]
        logits, layers = None, torch.zeros(batch, dtype=torch.long)
        memory: Tensor | None = None
        while not state.done:
            state = state.advance()
            outputs = self.exit(state)
            leaves, memory = rule(outputs, memory)
            if state.layer == self.layers:
                leaves = torch.ones_like(leaves)
            if logits is None:
                logits = outputs.logits.new_zeros(batch, outputs.logits.shape[-1])
            rows = state.sequences[leaves]
            logits[rows], layers[rows.cpu()] = outputs.logits[leaves], state.layer
            memory = None if memory is None else memory[~leaves]
            state = state.select(~leaves)
        assert logits is not None  # a model has at least one layer
        return logits, layers

    def save_pretrained(self, folder: str | Path) -> None:
        """Save the model as hashee does, and the classifiers beside it."""
        folder = Path(folder)
        self.model.save_pretrained(folder)
        own = {name: tensor for name, tensor in self.state_dict().items() if not name.startswith("model.")}
        with replaced_atomically(folder / EXITS) as unfinished:
            save_file(own, unfinished)
        kinds = {type(classifier).__name__ for classifier in self.classifiers}
        about = {
            "classifiers": len(self.classifiers),
            "kind": kinds.pop(),
            "certainty": self.certainty is not None,
            "tolerance": self.tolerance,
        }
        with replaced_atomically(folder / DESCRIPTION) as unfinished:
            unfinished.write_text(json.dumps(about), encoding="utf-8")

    @classmethod
    def from_folder(cls, folder: Path) -> MultiExitModel:
        """Open what `save_pretrained` wrote, in eval mode."""
        try:
            about = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
            model = load(folder)
            classifiers = new_classifiers(model, about["classifiers"], CLASSIFIERS[about["kind"]])
            certainty = new_certainty(model) if about["certainty"] else None
            opened = cls(model, classifiers, certainty, about["tolerance"])
            opened.load_state_dict(load_file(folder / EXITS), strict=False)
        except (OSError, ValueError, KeyError) as error:
            raise CheckpointError(
                f"{folder} holds no model with internal classifiers ({error}); fit it again"
            ) from error
        return opened.eval()


def new_classifiers(model: Any, number: int, kind: Classifier = MeanClassifier) -> nn.ModuleList:
    """Return newly initialised classifiers for the first layers of a model."""
    width, labels = model.config.hidden_size, head_of(model)[-1].out_features
    return nn.ModuleList(kind(width, labels) for _ in range(number))


def mean_of(state: EncoderState) -> Tensor:
    """Return the mean state of the tokens of each remaining sequence: (sequences, width)."""
    rows, present = state.tokens_by_sequence()
    states = state.hidden[rows].masked_fill(~present[..., None], 0.0)
    return states.sum(dim=1) / present.sum(dim=1, keepdim=True)


def new_certainty(model: Any) -> nn.Linear:
    """Return BERxiT's learning-to-exit module: one number from what the classifiers read, for all layers."""
    return nn.Linear(model.config.hidden_size, 1)


def head_of(model: Any) -> tuple[Any, ...]:
    """Return the steps from the first row to the logits of a model for sequences."""
    layout = model.adapter.onnx
    if layout is None:
        raise UnsupportedModel(
            f"internal classifiers have the shape of the model's head, and where {model.config.model_type} models keep "
            f"theirs is not known; give the family's adapter an OnnxLayout"
        )
    steps: tuple[Any, ...] = layout.classifier(model, model.hashed_encoder)
    return steps


def head_dropout(config: Any) -> float:
    """Return the rate of dropout before the last layer of a head, as transformers chooses it."""
    own = getattr(config, "classifier_dropout", None)
    return float(getattr(config, "hidden_dropout_prob", 0.0) if own is None else own)


def apply_head(steps: tuple[Any, ...], rows: Tensor, dropout: float = 0.0) -> Tensor:
    """Pass rows, (sequences, width), through the steps of a head, with dropout before the last."""
    for number, step in enumerate(steps):
        if dropout and number == len(steps) - 1:
            rows = F.dropout(rows, dropout)
        rows = _ACTIVATIONS[step](rows) if isinstance(step, str) else step(rows)
    return rows
