"""Inputs and outputs of a model in training: batches, with targets or without, and logits or hidden states."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Flag, auto
from typing import Any

import torch
from torch import Tensor

from hashee.data.tokenized import Tokenized


class Need(Flag):
    """What an objective must be given."""

    NOTHING = 0
    LABELS = auto()
    """The targets of the batch."""
    TEACHER = auto()
    """The outputs of a teacher."""
    HIDDEN_STATES = auto()
    """Hidden states of the model, and of the teacher if there is one; the first of them are the embeddings."""
    ATTENTIONS = auto()
    """Attention weights likewise; models with exits do not return any."""


@dataclass(frozen=True)
class Batch:
    """Some examples that go through a model together."""

    indices: tuple[int, ...]
    """Which training examples they are."""
    inputs: Mapping[str, Tensor]
    """What a model takes: (examples, longest) each."""
    items: Tensor
    """How many predictions each example counts for: one, or one for each tagged word or written token. (examples,)"""
    targets: Tensor | None
    """(predictions,), or (predictions, labels) for multi-label tasks; None without labels."""
    labelled: Tensor | None = None
    """(predictions,) bool, which of them have a target, where not all have; `targets` has no rows for the others."""
    words: Tensor | None = None
    """For tags: where the words are in the flattened (examples * longest) batch; for summaries, where the tokens are in
    the flattened (examples * longest summary) one; (predictions,)."""
    step: int = 0
    """The optimizer steps before this one, for objectives that alternate."""

    @property
    def mask(self) -> Tensor:
        """Which positions hold a token: (examples, longest), bool."""
        return self.inputs["attention_mask"].bool()

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on a device."""
        return replace(
            self,
            inputs={name: tensor.to(device) for name, tensor in self.inputs.items()},
            items=self.items.to(device),
            targets=None if self.targets is None else self.targets.to(device),
            labelled=None if self.labelled is None else self.labelled.to(device),
            words=None if self.words is None else self.words.to(device),
        )


@dataclass(frozen=True)
class ExitOutputs:
    """What the internal classifier after one layer says of the sequences that are in the batch."""

    layer: int
    logits: Tensor
    """(sequences, labels); one label for scores."""
    certainty: Tensor | None = None
    """(sequences,) from 0 to 1, where the model has learned to tell how likely it is right; None elsewhere."""


@dataclass(frozen=True)
class Outputs:
    """The outputs of a model for a batch."""

    logits: Tensor
    """One row for each text, or for each tagged word: (predictions, labels), with one label for scores."""
    hidden_states: tuple[Tensor, ...] | None = None
    """The embeddings, then the states after each layer: (examples, longest, width) each."""
    attentions: tuple[Tensor, ...] | None = None
    """Attention weights of each layer: (examples, heads, longest, longest) each."""
    exits: tuple[ExitOutputs, ...] = ()
    """Of each layer, for models with internal classifiers."""


def batch_of(tokenized: Tokenized, indices: Sequence[int]) -> Batch:
    """Return some tokenized examples as a batch; without targets if they have none."""
    return Batch(
        indices=tuple(indices),
        inputs=tokenized.training_inputs(indices),
        items=torch.from_numpy(tokenized.items[list(indices)]),
        targets=None if tokenized.targets is None else tokenized.batch_targets(indices),
        labelled=tokenized.is_labelled(indices),
        words=tokenized.word_rows(indices),
    )


def outputs_of(model: Any, batch: Batch, needs: Need) -> Outputs:
    """Run a model on a batch and keep what an objective needs of its outputs."""
    wanted = {
        name: True
        for name, need in (("output_hidden_states", Need.HIDDEN_STATES), ("output_attentions", Need.ATTENTIONS))
        if need in needs
    }
    found = model(**batch.inputs, **wanted)
    exits = tuple(replace(each, logits=_predicted(each.logits, batch)) for each in getattr(found, "exits", ()))
    return Outputs(
        logits=exits[-1].logits if exits else _predicted(found.logits, batch),
        hidden_states=_of_encoder(found, "hidden_states") if Need.HIDDEN_STATES in needs else None,
        attentions=_of_encoder(found, "attentions") if Need.ATTENTIONS in needs else None,
        exits=exits,
    )


def _predicted(logits: Tensor, batch: Batch) -> Tensor:
    """Return the rows of logits that are predictions: (predictions, labels)."""
    return logits if batch.words is None else logits.flatten(0, 1).index_select(0, batch.words)


def _of_encoder(found: Any, name: str) -> Any:
    """Return what a model recorded of its encoder, which is all there is but for seq2seq models."""
    return getattr(found, name if hasattr(found, name) else f"encoder_{name}")
