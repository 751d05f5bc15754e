"""From ids to hidden states: embed the real tokens, run the packed blocks, give the rows back in order."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hashee.adapters import Adapter, Tokens
from hashee.block import Block, apply_block
from hashee.errors import CheckpointError, InputError, UnsupportedOption
from hashee.plan import Plan, make_plan


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
    """Packed states of a batch: the last ones, and those before and after every layer if they were asked for."""

    hidden: Tensor
    """(tokens, width)"""
    plan: Plan
    states: tuple[Tensor, ...] | None


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


def encode(adapter: Adapter, encoder: Any, batch: Batch, exit_layers: Tensor, keep_states: bool = False) -> Encoded:
    """Run an encoder over a batch, updating each token up to its exit layer.

    exit_layers: (vocabulary,) exit layer of every token id.
    """
    layers = adapter.layers(encoder)
    num_layers = adapter.exit_layer(encoder, len(layers) - 1)
    plan = make_plan(_look_up(exit_layers, batch), batch.mask, num_layers)
    hidden = adapter.embed(encoder, _pack_tokens(adapter, encoder, batch, plan)).squeeze(0)
    bias = adapter.position_bias(encoder, plan.rows[plan.seats] % max(plan.length, 1)) if plan.tokens else None

    states = [hidden]
    drop = adapter.layer_drop(encoder) if encoder.training else 0.0
    for layer, block in zip(layers, adapter.blocks(encoder), strict=True):
        # Once every token is frozen nothing changes any more.
        if plan.active[block.layer] and not (drop and torch.rand(()) < drop):
            hidden = _apply(layer)(block, hidden, plan, bias)
        states.append(hidden)

    norm = adapter.final_norm(encoder)
    hidden = hidden if norm is None else norm(hidden)
    return Encoded(hidden, plan, (*states[:-1], hidden) if keep_states else None)


def _apply(layer: Any) -> Callable[[Block, Tensor, Plan, Tensor | None], Tensor]:
    """Return `apply_block`, wrapped as the Hugging Face layer says if gradient checkpointing is on."""
    if layer.training and getattr(layer, "gradient_checkpointing", False):
        return partial(layer._gradient_checkpointing_func, apply_block)
    return apply_block


def _look_up(exit_layers: Tensor, batch: Batch) -> Tensor:
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
    if exits.numel() and int(exits.min()) < 0:
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
