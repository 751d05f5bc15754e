"""Attention heads that are removed for good: what each is worth, which ones go, and models with smaller matrices."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hashee.cost.macs import Costs, EncoderShape, executed_by_layer, paper_by_layer
from hashee.data.batching import Batching, make_batches
from hashee.data.tokenized import Tokenized
from hashee.engine.adapter import Adapter
from hashee.engine.parts import AttentionPart, SeparateProjections
from hashee.errors import CheckpointError, UnsupportedModel
from hashee.export.loading import load
from hashee.families.adapters import adapter_for
from hashee.files import replaced_atomically
from hashee.hf.flops import lengths_and_active
from hashee.study.wrapping import ModelAround
from hashee.training.objective import Objective
from hashee.training.outputs import batch_of, outputs_of

Heads = tuple[tuple[int, ...], ...]
"""For each layer the heads that are left, numbered as in the whole model, rising."""
KEPT = "heads.json"
"""File of the heads that are left, beside the model's own files."""
STEP = 0.1
"""Share of all heads that go before the importance of the others is measured anew."""
_COUNTS = ("num_attention_heads", "n_heads", "num_heads")
"""What families call the number of heads of an attention module."""


def attention_parts(model: Any) -> list[AttentionPart]:
    """Return the attention of each layer of a model, dense or converted, if heads can be taken out of it one by one."""
    adapter = adapter_for(model.config)
    encoder = next(module for module in model.modules() if isinstance(module, adapter.encoder_class))
    parts = [block.attention for block in adapter.blocks(encoder)]
    name = type(model).__name__
    if not all(isinstance(part.projections, SeparateProjections) for part in parts):
        raise UnsupportedModel(f"{name} projects queries, keys and values in one product; prune a model of BERT's kind")
    if len({part.output for part in parts}) < len(parts):
        raise UnsupportedModel(f"layers of {name} share their weights, so a layer has no heads of its own to prune")
    if type(adapter).position_terms is not Adapter.position_terms or (
        type(adapter).position_bias is not Adapter.position_bias
    ):
        raise UnsupportedModel(f"{name} has position terms for each head; prune a model with absolute positions")
    return parts


def all_heads(model: Any) -> Heads:
    """Return the heads of a whole model."""
    return tuple(tuple(range(part.heads)) for part in attention_parts(model))


@contextmanager
def masked_heads(model: Any, masks: Sequence[Tensor]) -> Iterator[None]:
    """Multiply what each head of a dense model has read. masks: (examples or 1, heads) for each layer."""
    handles = [
        part.output.register_forward_pre_hook(partial(_masked, mask))
        for part, mask in zip(attention_parts(model), masks, strict=True)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _masked(mask: Tensor, module: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
    """Return the input of an output projection by head times its mask: (examples, tokens, width)."""
    by_head = inputs[0].unflatten(-1, (mask.shape[-1], -1))
    return ((by_head * mask[:, None, :, None]).flatten(-2),)


def head_importance(model: Any, examples: Tokenized, objective: Objective, kept: Heads) -> Tensor:
    """Return the mean over examples of |d loss / d mask| of each head of a dense model, the others masked out.

    The absolute value is taken for each example, so that opposite effects do not cancel. Returns (layers, heads).
    """
    parts = attention_parts(model)
    masks = torch.zeros(len(parts), parts[0].heads, dtype=model.dtype, device=model.device)
    for layer, heads in enumerate(kept):
        masks[layer, list(heads)] = 1.0
    total = torch.zeros_like(masks)
    model.eval()
    for indices in make_batches([row.tolist() for row in examples.ids], None, Batching()):
        batch = batch_of(examples, indices).to(model.device)
        each = [mask.expand(len(indices), -1).clone().requires_grad_() for mask in masks]
        with torch.enable_grad(), masked_heads(model, each):
            loss = objective(outputs_of(model, batch, objective.needs), batch)
        # The loss is a sum over examples, and each has masks of its own.
        total += torch.stack([gradient.abs().sum(0) for gradient in torch.autograd.grad(loss, each)])
    return total / len(examples)


def pruned_stepwise(measure: Callable[[Heads], Tensor], whole: Heads, targets: Sequence[int]) -> Iterator[Heads]:
    """Yield the heads that are left at falling numbers of them, a few removed at a time, the least important first.

    measure: from the heads that are left to the importance of each: (layers, heads).
    """
    kept = whole
    step = max(1, round(STEP * _count(whole)))
    for target in targets:
        while _count(kept) > max(target, len(kept)):
            kept = without_least(kept, measure(kept), min(step, _count(kept) - max(target, len(kept))))
        yield kept


def without_least(kept: Heads, importance: Tensor, number: int) -> Heads:
    """Take away the least important heads of all layers; the last head of a layer stays.

    importance: (layers, heads), made comparable between layers by the l2 norm of each layer.
    """
    left = [set(heads) for heads in kept]
    scored = []
    for layer, heads in enumerate(kept):
        values = importance[layer, list(heads)].double()
        values = values / values.norm().clamp(min=1e-20)
        scored += [(value, layer, head) for value, head in zip(values.tolist(), heads, strict=True)]
    for _, layer, head in sorted(scored):
        if number and len(left[layer]) > 1:
            left[layer].remove(head)
            number -= 1
    return tuple(tuple(sorted(heads)) for heads in left)


def _count(heads: Heads) -> int:
    return sum(map(len, heads))


def prune_heads_(model: Any, kept: Heads) -> None:
    """Cut the projections of a whole model, dense or converted, down to the heads that are left, in place."""
    for part, heads in zip(attention_parts(model), kept, strict=True):
        rows = _positions(heads, _head_size(part))
        for projection in part.projections.modules:
            _replace(model, projection, _cut(projection, rows, dim=0))
        _replace(model, part.output, _cut(part.output, rows, dim=1))
    _tell_heads(model, [len(heads) for heads in kept])


def restore_heads_(model: Any, kept: Heads, heads: int) -> None:
    """Give a pruned model its full shape again, in place, with zeros for the heads that are gone; it says the same."""
    for part, left in zip(attention_parts(model), kept, strict=True):
        size = _head_size(part)
        rows = _positions(left, size)
        for projection in part.projections.modules:
            _replace(model, projection, _spread(projection, rows, heads * size, dim=0))
        _replace(model, part.output, _spread(part.output, rows, heads * size, dim=1))
    _tell_heads(model, [heads] * len(kept))


def _head_size(part: AttentionPart) -> int:
    together: int = part.output.in_features  # type: ignore[assignment]
    return together // part.heads


def _positions(heads: Sequence[int], size: int) -> Tensor:
    """Return where the entries of some heads are among those of all heads: (heads * size,)."""
    return torch.arange(size).add(torch.tensor(heads)[:, None] * size).flatten()


def _cut(linear: Any, rows: Tensor, dim: int) -> nn.Linear:
    """Return a linear layer with some outputs (dim 0) or inputs (dim 1) of another."""
    rows = rows.to(linear.weight.device)
    bias = linear.bias if linear.bias is None or dim == 1 else linear.bias[rows]
    return _linear(linear.weight.index_select(dim, rows), bias)


def _spread(linear: Any, rows: Tensor, size: int, dim: int) -> nn.Linear:
    """Undo `_cut`: put outputs or inputs where they were among `size`, with zeros between them."""
    rows = rows.to(linear.weight.device)
    shape = list(linear.weight.shape)
    shape[dim] = size
    weight = linear.weight.new_zeros(shape).index_copy(dim, rows, linear.weight)
    bias = linear.bias
    if bias is not None and dim == 0:
        bias = bias.new_zeros(size).index_copy(0, rows, bias)
    return _linear(weight, bias)


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    outputs, inputs = weight.shape
    made = nn.Linear(inputs, outputs, bias is not None, device="meta")
    made.weight = nn.Parameter(weight.detach().clone())
    if bias is not None:
        made.bias = nn.Parameter(bias.detach().clone())
    return made


def _replace(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    model.set_submodule(next(name for name, module in model.named_modules() if module is old), new)


def _tell_heads(model: Any, numbers: Sequence[int]) -> None:
    """Set the number of heads of each layer's attention module, which blocks are read from in every forward pass."""
    names = {module: name for name, module in model.named_modules()}
    for part, number in zip(attention_parts(model), numbers, strict=True):
        owner = model.get_submodule(names[part.projections.modules[0]].rpartition(".")[0])
        for name in _COUNTS:
            if hasattr(owner, name):
                setattr(owner, name, number)
        if hasattr(owner, "all_head_size"):
            owner.all_head_size = part.output.in_features
    if [part.heads for part in attention_parts(model)] != list(numbers):
        raise UnsupportedModel(f"heads of {type(model).__name__} cannot be pruned: nothing tells how many a layer has")


class PrunedModel(ModelAround):
    """A model on the packed blocks of which some attention heads were removed."""

    def __init__(self, model: Any, kept: Heads) -> None:
        """Cut a whole converted model down to the heads that are left, in place."""
        super().__init__(model)
        prune_heads_(model, kept)
        self.kept = kept

    @property
    def shape(self) -> EncoderShape:
        """What sets the cost: that of the whole model with fewer heads."""
        whole = adapter_for(self.config).shape(self.config)
        return replace(whole, kept_heads=tuple(map(len, self.kept)))

    @property
    def share(self) -> float:
        """Share of the heads that are left."""
        whole = self.shape
        return _count(self.kept) / (whole.layers * whole.heads)

    def forward(self, **inputs: Tensor) -> Any:
        """Run the model as its class does."""
        return self.model(**inputs)

    def costs(self, tokenized: Tokenized) -> Costs:
        """Count what each example costs with the heads that are left: (examples,)."""
        lengths, active = lengths_and_active(self.exit_table, [row.tolist() for row in tokenized.ids])
        first_only = bool(self.model.hashed_encoder.reads_first_row)
        return Costs(
            executed_by_layer(self.shape, lengths, active, first_only).sum(axis=1),
            paper_by_layer(self.shape, lengths, active).sum(axis=1),
        )

    def save_pretrained(self, folder: str | Path) -> None:
        """Save a whole model with zeros for the heads that are gone, and beside it which ones are left."""
        folder = Path(folder)
        whole = copy.deepcopy(self.model)
        restore_heads_(whole, self.kept, self.shape.heads)
        whole.save_pretrained(folder)
        with replaced_atomically(folder / KEPT) as unfinished:
            unfinished.write_text(json.dumps({"kept": self.kept}) + "\n", encoding="utf-8")

    @classmethod
    def from_folder(cls, folder: Path) -> PrunedModel:
        """Open what `save_pretrained` wrote, in eval mode."""
        try:
            kept = json.loads((folder / KEPT).read_text(encoding="utf-8"))["kept"]
            heads = tuple(tuple(int(head) for head in layer) for layer in kept)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{folder} holds no model with pruned heads ({error}); fit it again") from error
        model = load(folder)
        whole = all_heads(model)
        fits = len(heads) == len(whole) and all(
            left and set(left) <= set(there) and list(left) == sorted(set(left))
            for left, there in zip(heads, whole, strict=False)
        )
        if not fits:
            raise CheckpointError(f"{folder / KEPT} is of another model than the one beside it; fit it again")
        return cls(model, heads).eval()
