"""From ids to hidden states: embed the real tokens, run the packed blocks, give the rows back in order."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import Module

from hashee.adapters import Adapter, Tokens
from hashee.block import Block, LookedUp, Projected, Step, apply_block
from hashee.errors import CheckpointError, InputError, UnsupportedOption
from hashee.first_layer import look_up
from hashee.fused import run_layers_
from hashee.plan import Plan, make_plan

Reads = Literal["all", "first"]
"""Which rows are read after the last layer: all, or the first of each sequence."""


@dataclass(frozen=True)
class Batch:
    """What a caller hands to an encoder; all (batch, length) but the embeddings."""

    input_ids: Tensor
    mask: Tensor
    """Bool, True for real tokens."""
    token_type_ids: Tensor | None = None
    position_ids: Tensor | None = None
    inputs_embeds: Tensor | None = None
    """(batch, length, width) word embeddings in place of a look-up; the ids still decide the exits."""


@dataclass(frozen=True)
class Encoded:
    """Packed states of a batch, and those before and after every layer in the caller's order if they are wanted."""

    hidden: Tensor
    """(tokens, width)"""
    plan: Plan
    reads: Reads
    states: tuple[Tensor, ...] | None
    """(batch, length, width) each."""

    def unpacked(self) -> Tensor:
        """Return the last states in the caller's order, (batch, length, width); rows that nobody reads are NaN."""
        if self.reads == "all":
            return self.plan.unpack(self.hidden)
        plan, width = self.plan, self.hidden.shape[1]
        first = plan.rows % max(plan.length, 1) == 0
        padded = self.hidden.new_full((plan.batch * plan.length, width), float("nan"))
        padded = padded.index_copy(0, plan.rows[first], self.hidden[first])
        return padded.view(plan.batch, plan.length, width)


def read_batch(
    input_ids: Tensor | None,
    attention_mask: Tensor | None,
    token_type_ids: Tensor | None,
    position_ids: Tensor | None,
    inputs_embeds: Tensor | None,
) -> Batch:
    """Check a caller's tensors and fill in the mask."""
    if input_ids is None:
        raise UnsupportedOption(
            "inputs_embeds without input_ids: the ids decide where tokens exit; pass both input_ids and inputs_embeds"
            if inputs_embeds is not None
            else "input_ids is missing; pass the token ids of the batch"
        )
    if input_ids.ndim != 2:
        raise InputError(f"input_ids must be (batch, length), not {tuple(input_ids.shape)}")
    shape = input_ids.shape
    if attention_mask is None:
        mask = torch.ones(shape, dtype=torch.bool, device=input_ids.device)
    elif attention_mask.ndim != 2:
        raise UnsupportedOption(
            f"attention_mask with {attention_mask.ndim} dimensions: exits are computed for one mask per sequence; "
            "pass a (batch, length) mask of zeros and ones"
        )
    else:
        mask = attention_mask != 0
        if attention_mask.dtype != torch.bool and not bool((mask == (attention_mask == 1)).all()):
            raise UnsupportedOption("attention_mask with values other than 0 and 1: pass a mask of zeros and ones")
    for name, tensor in (
        ("attention_mask", mask),
        ("token_type_ids", token_type_ids),
        ("inputs_embeds", inputs_embeds),
    ):
        if tensor is not None and tensor.shape[:2] != shape:
            raise InputError(f"{name} is {tuple(tensor.shape)} but input_ids is {tuple(shape)}")
    if position_ids is not None:
        position_ids = position_ids.expand(shape)
    return Batch(input_ids, mask, token_type_ids, position_ids, inputs_embeds)


# The rows of each layer depend on the texts, so a compiler would begin anew with every batch.
@torch.compiler.disable  # type: ignore[untyped-decorator]
def encode(
    adapter: Adapter,
    encoder: Any,
    batch: Batch,
    exit_layers: Tensor,
    *,
    reads: Reads = "all",
    keep_states: bool = False,
) -> Encoded:
    """Run an encoder over a batch, updating each token up to its exit layer.

    exit_layers: (vocabulary,) exit layer of every token id; reads: the rows that will be looked at.
    """
    layers = adapter.layers(encoder)
    num_layers = adapter.exit_layer(encoder, len(layers) - 1)
    exits = _look_up(exit_layers, batch, num_layers)
    if reads == "first" and len(layers) == num_layers:
        # Nobody sees the last update of an unread token, not even other tokens: that takes one more block.
        exits[:, 1:].clamp_(max=num_layers - 1)
    plan = make_plan(exits, batch.mask, num_layers)
    blocks = list(adapter.blocks(encoder))
    known: dict[Module, Projected | LookedUp] = {}
    tokens = _pack_tokens(adapter, encoder, batch, plan)
    first = look_up(encoder.first_layer_cache, adapter, encoder, blocks[0], tokens) if plan.active[1] else None
    if first is None:
        hidden = adapter.embed(encoder, tokens).squeeze(0)
    else:
        hidden, known[_identity(blocks[0])] = first.hidden, first.projected
    columns = plan.rows[plan.seats] % max(plan.length, 1)
    terms = adapter.position_terms(encoder, tokens, columns, hidden) if plan.tokens else {}

    states: list[Tensor] = []
    drop = adapter.layer_drop(encoder) if encoder.training else 0.0
    runs = Counter(map(_identity, blocks))
    fusable = not keep_states and not terms and not encoder.training and len(runs) == len(blocks)
    for number, (layer, block) in enumerate(zip(layers, blocks, strict=True)):
        if fusable and _identity(block) not in known and run_layers_(blocks[number:], hidden, plan):
            break
        if keep_states:
            hidden = _keep(hidden, plan, states)
        # Once every token is frozen nothing changes any more.
        if plan.active[block.layer] and not (drop and torch.rand(()) < drop):
            weights = _identity(block)
            step = _apply(layer)(block, hidden, plan, terms.get(block.attention.kind), known.get(weights))
            hidden = _put(step.updated, hidden, in_place=not keep_states)
            known.pop(weights, None)
            if runs[weights] > 1 and step.projected is not None:
                known[weights] = step.projected

    norm = adapter.final_norm(encoder)
    hidden = hidden if norm is None else norm(hidden)
    if keep_states:
        hidden = _keep(hidden, plan, states)
    return Encoded(hidden, plan, reads, tuple(states) if keep_states else None)


def _identity(block: Block) -> Module:
    """Return a module that only blocks with the same weights have."""
    return block.attention.projections.modules[0]


def _keep(hidden: Tensor, plan: Plan, states: list[Tensor]) -> Tensor:
    """Add states in the caller's order to a list, and return those to go on with."""
    states.append(plan.unpack(hidden))
    # What is kept stands between one layer and the next, so that gradients reach it.
    return plan.pack(states[-1]) if torch.is_grad_enabled() else hidden


def _put(updated: Tensor, hidden: Tensor, in_place: bool) -> Tensor:
    """Return the states with their first rows updated, in place where nobody needs the old ones."""
    if len(updated) == len(hidden):
        return updated
    if torch.is_grad_enabled() or not in_place:
        return torch.cat([updated, hidden[len(updated) :]])
    hidden[: len(updated)] = updated
    return hidden


def _apply(layer: Any) -> Callable[..., Step]:
    """Return `apply_block`, wrapped as the Hugging Face layer says if gradient checkpointing is on."""
    if not (layer.training and getattr(layer, "gradient_checkpointing", False)):
        return apply_block

    def checkpointed(*arguments: Any) -> Step:
        # Keeping the keys and values would defeat the purpose.
        return Step(layer._gradient_checkpointing_func(_updated, *arguments), projected=None)

    return checkpointed


def _updated(*arguments: Any) -> Tensor:
    return apply_block(*arguments).updated


def _look_up(exit_layers: Tensor, batch: Batch, num_layers: int) -> Tensor:
    """Return the exit layer of every position, checking that every real token is in the table: (batch, length)."""
    ids = batch.input_ids.masked_fill(~batch.mask, 0)
    if ids.numel():
        low, high = torch.stack(ids.aminmax()).tolist()
        if low < 0 or high >= len(exit_layers):
            raise InputError(
                f"token id {high if high >= len(exit_layers) else low} is outside the exit table of {len(exit_layers)} "
                "tokens; use the tokenizer that the model was converted with, or model.resize_token_embeddings"
            )
    exits = exit_layers[ids]
    if exits.numel():
        lowest, deepest = torch.stack(exits.aminmax()).tolist()
        if lowest < 0 or deepest > num_layers:
            raise CheckpointError(
                "the exit table was never filled; use hashee.convert or from_pretrained, not a bare config"
            )
    return exits


def _pack_tokens(adapter: Adapter, encoder: Any, batch: Batch, plan: Plan) -> Tokens:
    """Take the real tokens of a batch and their types and positions in packed order."""
    positions = adapter.positions(encoder, batch.input_ids) if batch.position_ids is None else batch.position_ids
    packed = plan.pack(positions)
    room = adapter.max_position(encoder)
    if plan.tokens and int(packed.max()) >= room:
        raise InputError(
            f"a text of {int(batch.mask.sum(1).max())} tokens reaches position {int(packed.max())}, but the model has "
            f"{room} positions; tokenize with truncation=True"
        )
    types = batch.token_type_ids
    return Tokens(
        ids=plan.pack(batch.input_ids)[None],
        types=torch.zeros_like(packed)[None] if types is None else plan.pack(types)[None],
        positions=packed[None],
        embeds=None if batch.inputs_embeds is None else plan.pack(batch.inputs_embeds)[None],
    )
