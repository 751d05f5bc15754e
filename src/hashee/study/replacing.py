"""A model some of whose layers give way to those of a shallower one while that one is trained."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainerCallback

from hashee.engine.encoder import EncoderState
from hashee.families.layers import blocks_by_layer
from hashee.study.multi_exit import apply_head, head_dropout, head_of
from hashee.training.objective import even_layers


@dataclass(frozen=True)
class MixedOutput:
    """What a model says of a batch in training."""

    logits: Tensor
    """(batch, labels), or for tags (batch, longest, labels)."""


class ReplacedLayers(nn.Module):
    """A frozen predecessor of which groups of layers are replaced at random by one layer each of its successor.

    Both are converted models without token exits. In eval mode the successor runs alone.
    """

    def __init__(self, predecessor: Any, successor: Any) -> None:
        super().__init__()
        self.predecessor = predecessor.requires_grad_(False)
        self.successor = successor
        self.probability = 1.0
        """With which each group of layers is replaced, independently of the others."""
        ends = [0, *(end for _, end in even_layers(self.exit_table.num_layers, predecessor.exit_table.num_layers))]
        self.groups = [range(start, end) for start, end in pairwise(ends)]
        """The predecessor's layers, from 0, that each layer of the successor replaces."""

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        device: torch.device = self.successor.device
        return device

    @property
    def exit_table(self) -> Any:
        """The successor's, by which batches are made."""
        return self.successor.exit_table

    def set_probability_(self, probability: float) -> None:
        """Set how often layers are replaced; embeddings and head learn only once the successor runs alone."""
        self.probability = probability
        for weight in self.successor.parameters():
            weight.requires_grad_(probability >= 1)
        for weight in self._layer_weights():
            weight.requires_grad_(True)

    def _layer_weights(self) -> list[nn.Parameter]:
        modules = [module for layer in blocks_by_layer(self.successor) for module, _ in layer]
        return [weight for module in modules for weight in module.parameters()]

    def forward(self, **inputs: Tensor) -> Any:
        """Run a batch, in training with layers drawn anew. inputs: (batch, longest) each."""
        if not self.training:
            return self.successor(**inputs)
        replaced = (torch.rand(len(self.groups)) < self.probability).tolist()
        logits = self.mixed(replaced, inputs)
        if not any(replaced):
            # Nothing is learned where nothing was replaced, but a step needs something to differentiate.
            logits = logits + 0.0 * self._layer_weights()[0].sum()
        return MixedOutput(logits)

    def mixed(self, replaced: Sequence[bool], inputs: Mapping[str, Tensor]) -> Tensor:
        """Return the logits of a batch that runs through the successor's layers where groups are replaced.

        replaced: for each group; inputs: (batch, longest) each. Returns (batch, labels) or (batch, longest, labels).
        """
        own, others = blocks_by_layer(self.successor), blocks_by_layer(self.predecessor)
        chosen = [
            (module, replace(block, layer=number + 1))
            for number, group in enumerate(self.groups)
            for layer in ([own[number]] if replaced[number] else [others[place] for place in group])
            for module, block in layer
        ]
        # All rows, since a group that was not replaced is several blocks, and only the last could do with fewer.
        state = self.successor.hashed_encoder.start(reads="all", **inputs)
        network = replace(
            state.network,
            layers=[module for module, _ in chosen],
            blocks=tuple(block for _, block in chosen),
            # Without exits all rows change in every layer, so no projection is of use again.
            runs=Counter(),
        )
        return self._logits(replace(state, network=network, cached={}).finish())

    def _logits(self, state: EncoderState) -> Tensor:
        """Apply the successor's head to the states after the last layer."""
        model = self.successor
        if not model.hashed_encoder.reads_first_row:
            logits: Tensor = model.classifier(model.dropout(state.unpacked()))
            return logits
        return apply_head(head_of(model), state.first(), head_dropout(model.config))


@dataclass(frozen=True)
class Curriculum:
    """The probability of replacement, which rises linearly over the first steps and then stays at 1."""

    start: float = 0.3
    share: float = 0.6
    """Of all steps, after which the successor is alone."""

    def at(self, step: int, steps: int) -> float:
        """Return the probability in the step that follows so many of all steps."""
        return min(1.0, self.start + (1.0 - self.start) * step / (self.share * steps))


class Replacement(TrainerCallback):
    """Sets the probability before each step from the Trainer's state, so that a resumed run has the same."""

    def __init__(self, model: ReplacedLayers, curriculum: Curriculum) -> None:
        self.model = model
        self.curriculum = curriculum

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Follow the curriculum."""
        self.model.set_probability_(self.curriculum.at(state.global_step, state.max_steps))
