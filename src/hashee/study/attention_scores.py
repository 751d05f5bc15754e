"""Attention scores before the softmax, which transformers does not show: taken from hooks, and compared."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hashee.engine.block import Block
from hashee.engine.parts import SeparateProjections
from hashee.errors import InputError, UnsupportedModel
from hashee.families.layers import blocks_by_layer
from hashee.training.outputs import Batch, Need, Outputs


@dataclass(frozen=True)
class ScoredOutput:
    """What a model says of a batch, with scores where a Hugging Face model has attention weights."""

    logits: Tensor
    hidden_states: tuple[Tensor, ...] | None
    attentions: tuple[Tensor, ...]
    """q.k / sqrt(d) in each layer: (examples, heads, longest, longest) each."""


class ScoredModel(nn.Module):
    """A dense Hugging Face model that shows its attention scores when it is asked for attentions."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        for layer in blocks_by_layer(model):
            if not all(isinstance(block.attention.projections, SeparateProjections) for _, block in layer):
                raise UnsupportedModel(
                    f"{model.config.model_type} projects queries and keys together, so its attention scores are not "
                    f"to be had; choose a backbone with separate projections, such as BERT"
                )
        self.model = model

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        device: torch.device = self.model.device
        return device

    def forward(self, output_attentions: bool = False, **inputs: Any) -> Any:
        """Run the model. inputs: (batch, longest) each, and options of the model."""
        if not output_attentions:
            return self.model(**inputs)
        blocks = [block for layer in blocks_by_layer(self.model) for _, block in layer]
        modules = [block.attention.projections.modules for block in blocks]
        with recorded([query for query, *_ in modules]) as queries, recorded([key for _, key, _ in modules]) as keys:
            found = self.model(**inputs)
        # Where a layer has several blocks, the last one's stand for it.
        scores = {
            block.layer: attention_scores(block, query, key)
            for block, query, key in zip(blocks, queries, keys, strict=True)
        }
        return ScoredOutput(found.logits, found.hidden_states, tuple(scores.values()))


@contextmanager
def recorded(modules: list[nn.Module]) -> Iterator[list[Tensor]]:
    """Collect what modules return while the context lasts, in the order of the calls; one may be called repeatedly."""
    outputs: list[Tensor] = []
    record: Callable[[Any, Any, Tensor], None] = lambda module, inputs, output: outputs.append(output)  # noqa: E731
    with ExitStack() as stack:
        for module in dict.fromkeys(modules):
            stack.callback(module.register_forward_hook(record).remove)
        yield outputs


def attention_scores(block: Block, query: Tensor, key: Tensor) -> Tensor:
    """Return q.k / sqrt(d) of each head, without what relative positions add.

    query, key: (examples, longest, width). Returns (examples, heads, longest, longest).
    """
    heads = block.attention.heads
    by_head = [rows.float().unflatten(-1, (heads, -1)).transpose(1, 2) for rows in (query, key)]
    scores: Tensor = by_head[0] @ by_head[1].transpose(-1, -2) * block.attention.scale
    return scores


@dataclass(frozen=True)
class AttentionDistillation:
    """The mean squared difference from a teacher's attention scores; it needs no labels."""

    layers: tuple[tuple[int, int], ...]
    """Pairs of (layer of the model, layer of the teacher), from 1."""

    @property
    def needs(self) -> Need:
        """Attention scores of both."""
        return Need.TEACHER | Need.ATTENTIONS

    def __call__(self, outputs: Outputs, batch: Batch, teacher_outputs: Outputs | None = None) -> Tensor:
        """Return the mean over heads, pairs of real tokens of each text and pairs of layers, summed over texts."""
        if teacher_outputs is None or outputs.attentions is None or teacher_outputs.attentions is None:
            raise InputError("attention scores are compared with a teacher's; run both as a ScoredModel")
        real = batch.mask[:, None, :, None] & batch.mask[:, None, None, :]
        distances = []
        for own_layer, teacher_layer in self.layers:
            own, other = outputs.attentions[own_layer - 1], teacher_outputs.attentions[teacher_layer - 1]
            apart = (own - other).square().mean(dim=1, keepdim=True).masked_fill(~real, 0.0)
            distances.append(apart.sum(dim=(1, 2, 3)) / real.sum(dim=(1, 2, 3)).clamp(min=1))
        # A text with several tagged words has as many shares of the step's mean.
        return (torch.stack(distances).mean(dim=0) * batch.items).sum()
