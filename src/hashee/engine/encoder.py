"""From ids to hidden states: embed the real tokens, run the packed blocks, unpack the rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import Module

from hashee.engine.adapter import Adapter, PackedTokens
from hashee.engine.attention import PositionTerms
from hashee.engine.block import Block, LayerOutput, LookedUp, Projected, apply_block
from hashee.engine.first_layer import look_up
from hashee.engine.fused import run_layers_
from hashee.engine.plan import Plan, exit_layer_of_each, make_plan
from hashee.errors import InputError, UnsupportedOption

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
class PackedStates:
    """Packed states of a batch after the last layer and, on request, the unpacked states around each layer."""

    hidden: Tensor
    """(tokens, width)"""
    plan: Plan
    reads: Reads
    states: tuple[Tensor, ...] | None
    """(batch, length, width) each: before the first layer and after each."""

    def unpacked(self) -> Tensor:
        """Return the last states in the caller's order, (batch, length, width); rows outside of `reads` are NaN."""
        return _unpacked(self.hidden, self.plan, self.reads)


def _unpacked(hidden: Tensor, plan: Plan, reads: Reads) -> Tensor:
    """Return packed states in the caller's order, (batch, length, width); rows outside of `reads` are NaN."""
    if reads == "all":
        return plan.unpack(hidden)
    first = plan.rows % max(plan.length, 1) == 0
    padded = hidden.new_full((plan.batch * plan.length, hidden.shape[1]), float("nan"))
    padded = padded.index_copy(0, plan.rows[first], hidden[first])
    return padded.view(plan.batch, plan.length, hidden.shape[1])


@dataclass(frozen=True)
class Network:
    """An encoder's layers, and how they run, for one forward pass."""

    layers: list[Module]
    """The Hugging Face layers, one for each block."""
    blocks: tuple[Block, ...]
    runs: Counter[Module]
    """How often each set of weights runs, by `_weights_key`."""
    final_norm: Module | None
    training: bool
    layer_drop: float
    """Probability with which a block is skipped in training."""

    def is_last(self, number: int) -> bool:
        """Return whether a block is the last one."""
        return number + 1 == len(self.blocks)


@dataclass(frozen=True)
class EncoderState:
    """An encoder between two layers: the states of the sequences that are still in the batch.

    `advance` runs one more layer and `select` removes sequences; both return a new state without changing this one, and
    gradients pass through both:

        state = model.hashed_encoder.start(**inputs)
        while not state.done:
            state = state.advance()
            classify = classifiers[state.layer - 1]
            scores = classify(state.first())
            logits[state.sequences] = scores
            state = state.select(entropy(scores) > threshold)
    """

    hidden: Tensor
    """(tokens, width) packed states; after the last layer they have passed the final norm, if there is one."""
    plan: Plan
    network: Network
    reads: Reads
    next_block: int = 0
    terms: Mapping[str, PositionTerms] = field(default_factory=dict)
    """How positions enter the scores, by the `attention_type` of a layer."""
    cached: Mapping[Module, Projected | LookedUp] = field(default_factory=dict)
    """Projections that later blocks need not compute, by `_weights_key`."""

    @property
    def layer(self) -> int:
        """The exit layer that ran last: 0 before the first."""
        return self.network.blocks[self.next_block - 1].layer if self.next_block else 0

    @property
    def done(self) -> bool:
        """Whether no layer or no sequence is left."""
        return self.network.is_last(self.next_block - 1) or not self.plan.tokens

    @property
    def sequences(self) -> Tensor:
        """(sequences,) rising: the rows of the caller's batch that are still in it; rows of padding alone never are."""
        return self._order[0]

    @cached_property
    def _order(self) -> tuple[Tensor, Tensor]:
        """The rows of the batch that are left, rising, and the sequence of each in the plan."""
        rows, numbers = self.plan.batch_rows.sort()
        return rows, numbers

    def first(self) -> Tensor:
        """Return the state of each remaining sequence's first real token in the order of `sequences`."""
        return self.hidden.index_select(0, self.plan.first_rows.index_select(0, self._order[1]))

    def tokens_by_sequence(self) -> tuple[Tensor, Tensor]:
        """Return the packed rows of each remaining sequence's tokens, in the order of `sequences`, and which there are.

        Both (sequences, longest); rows past the last token of a sequence are arbitrary.
        """
        order = self._order[1]
        return self.plan.slots.index_select(0, order), self.plan.occupied.index_select(0, order)

    def unpacked(self) -> Tensor:
        """Return all states in the caller's order, (batch, length, width); sequences that left and padding are zero."""
        return _unpacked(self.hidden, self.plan, self.reads if self.network.is_last(self.next_block - 1) else "all")

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def advance(self) -> EncoderState:
        """Run one exit layer."""
        if self.done:
            raise InputError(
                f"nothing is left to run after layer {self.layer} with {len(self.sequences)} sequences; "
                "advance only while `done` is False"
            )
        state, layer = self, self.network.blocks[self.next_block].layer
        while not state.done and state.network.blocks[state.next_block].layer == layer:
            state = _run_block(state, in_place=False)
        return state

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def finish(self) -> EncoderState:
        """Run all remaining layers; without decisions between them, small batches take one call of a kernel."""
        return _run_remaining_(replace(self, hidden=self.hidden.clone()))

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def select(self, keep: Tensor) -> EncoderState:
        """Remove sequences from the batch. keep: (sequences,) bool, which of `sequences` stay."""
        if keep.shape != self.sequences.shape or keep.dtype != torch.bool:
            shape = (len(self.sequences),)
            raise InputError(f"keep must be {shape} booleans, not {keep.dtype} of {tuple(keep.shape)}")
        if bool(keep.all()):
            return self
        batch = torch.zeros(self.plan.batch, dtype=torch.bool, device=self.sequences.device)
        kept = self.plan.select(batch.index_copy(0, self.sequences, keep.to(batch.device)))
        longest = kept.plan.slots.shape[1]
        return replace(
            self,
            hidden=self.hidden.index_select(0, kept.rows),
            plan=kept.plan,
            terms={name: term.select(kept.rows, kept.sequences, longest) for name, term in self.terms.items()},
            cached={key: cached.select(kept.rows) for key, cached in self.cached.items()},
        )


def read_batch(
    input_ids: Tensor | None = None,
    attention_mask: Tensor | None = None,
    token_type_ids: Tensor | None = None,
    position_ids: Tensor | None = None,
    inputs_embeds: Tensor | None = None,
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


def check_first_position(mask: Tensor) -> None:
    """Raise if the first position, which a head will read, is padding. mask: (batch, length) bool."""
    first_is_real = mask[:, :1].any(dim=1)
    if not bool(first_is_real.all()):
        row = int(first_is_real.logical_not().nonzero()[0])
        raise InputError(
            f"the head reads the first position, which is padding in row {row}; pad on the right "
            "(tokenizer.padding_side = 'right')"
        )


# The rows of each layer depend on the texts, so torch.compile would recompile for every batch.
@torch.compiler.disable  # type: ignore[untyped-decorator]
def encode(
    adapter: Adapter,
    encoder: Any,
    batch: Batch,
    exit_layers: Tensor,
    *,
    reads: Reads = "all",
    keep_states: bool = False,
) -> PackedStates:
    """Run an encoder over a batch, updating each token up to its exit layer.

    exit_layers: (vocabulary,) exit layer of every token id; reads: the rows that are read after the last layer.
    """
    state = start(adapter, encoder, batch, exit_layers, reads=reads)
    if not keep_states:
        state = _run_remaining_(state)
        return PackedStates(state.hidden, state.plan, reads, None)
    states: list[Tensor] = []
    while not state.network.is_last(state.next_block - 1):
        state = _run_block(replace(state, hidden=_record(state, states)), in_place=False)
    return PackedStates(_record(state, states), state.plan, reads, tuple(states))


@torch.compiler.disable  # type: ignore[untyped-decorator]
def start(adapter: Adapter, encoder: Any, batch: Batch, exit_layers: Tensor, *, reads: Reads = "all") -> EncoderState:
    """Embed a batch, ready for the first layer; arguments as in `encode`."""
    layers = adapter.layers(encoder)
    num_layers = adapter.exit_layer(encoder, len(layers) - 1)
    exits = exit_layer_of_each(exit_layers, batch.input_ids, batch.mask, num_layers)
    if reads == "first" and len(layers) == num_layers:
        # The last block's update of a token that the head does not read has no effect: no later block attends to it.
        exits[:, 1:].clamp_(max=num_layers - 1)
    plan = make_plan(exits, batch.mask, num_layers)
    blocks = tuple(adapter.blocks(encoder))
    cached: dict[Module, Projected | LookedUp] = {}
    tokens = _pack_tokens(adapter, encoder, batch, plan)
    first = look_up(encoder.first_layer_cache, adapter, encoder, blocks[0], tokens) if plan.active[1] else None
    if first is None:
        hidden = adapter.embed(encoder, tokens).squeeze(0)
    else:
        hidden, cached[_weights_key(blocks[0])] = first.hidden, first.projected
    columns = plan.rows[plan.slots] % max(plan.length, 1)
    terms = adapter.position_terms(encoder, tokens, columns, hidden) if plan.tokens else {}
    network = Network(
        layers=layers,
        blocks=blocks,
        runs=Counter(map(_weights_key, blocks)),
        final_norm=adapter.final_norm(encoder),
        training=encoder.training,
        layer_drop=adapter.layer_drop(encoder) if encoder.training else 0.0,
    )
    return EncoderState(hidden, plan, network, reads, terms=terms, cached=cached)


def _run_block(state: EncoderState, in_place: bool) -> EncoderState:
    """Run the next block, and the final norm after the last one. in_place: the states before may be overwritten."""
    network, number, plan, hidden = state.network, state.next_block, state.plan, state.hidden
    block, cached = network.blocks[number], dict(state.cached)
    # A block whose tokens are all frozen has nothing to do.
    if plan.active[block.layer] and not (network.layer_drop and torch.rand(()) < network.layer_drop):
        weights = _weights_key(block)
        terms = state.terms.get(block.attention.attention_type)
        output = _layer_function(network.layers[number])(block, hidden, plan, terms, cached.pop(weights, None))
        hidden = _with_updated(output.updated, hidden, in_place)
        if network.runs[weights] > 1 and output.projected is not None:
            cached[weights] = output.projected
    if network.is_last(number) and network.final_norm is not None:
        hidden = network.final_norm(hidden)
    return replace(state, hidden=hidden, next_block=number + 1, cached=cached)


def _run_remaining_(state: EncoderState) -> EncoderState:
    """Run all remaining blocks, those of small batches in one call, overwriting the states where that is safe."""
    network = state.network
    fusable = not state.terms and not network.training and len(network.runs) == len(network.blocks)
    for number in range(state.next_block, len(network.blocks)):
        remaining = network.blocks[number:]
        can_fuse = fusable and _weights_key(remaining[0]) not in state.cached
        if can_fuse and run_layers_(remaining, state.hidden, state.plan):
            hidden = state.hidden if network.final_norm is None else network.final_norm(state.hidden)
            return replace(state, hidden=hidden, next_block=len(network.blocks), cached={})
        state = _run_block(state, in_place=True)
    return state


def _weights_key(block: Block) -> Module:
    """Return a module that identifies a block's weights: blocks that share weights share it."""
    return block.attention.projections.modules[0]


def _record(state: EncoderState, states: list[Tensor]) -> Tensor:
    """Append the unpacked states to a list, and return the packed ones that the next block takes."""
    states.append(state.plan.unpack(state.hidden))
    # The next block takes the recorded states packed again, so that gradients reach them.
    return state.plan.pack(states[-1]) if torch.is_grad_enabled() else state.hidden


def _with_updated(updated: Tensor, hidden: Tensor, in_place: bool) -> Tensor:
    """Return the states with their first rows updated, in place if the old ones may be overwritten."""
    if len(updated) == len(hidden):
        return updated
    if torch.is_grad_enabled() or not in_place:
        return torch.cat([updated, hidden[len(updated) :]])
    hidden[: len(updated)] = updated
    return hidden


def _layer_function(layer: Any) -> Callable[..., LayerOutput]:
    """Return `apply_block`, wrapped as the Hugging Face layer says if gradient checkpointing is on."""
    if not (layer.training and getattr(layer, "gradient_checkpointing", False)):
        return apply_block

    def checkpointed(*arguments: Any) -> LayerOutput:
        # Keys and values are not kept: checkpointing is there to save memory.
        return LayerOutput(layer._gradient_checkpointing_func(_updated, *arguments), projected=None)

    return checkpointed


def _updated(*arguments: Any) -> Tensor:
    return apply_block(*arguments).updated


def _pack_tokens(adapter: Adapter, encoder: Any, batch: Batch, plan: Plan) -> PackedTokens:
    """Take the real tokens of a batch and their types and positions in packed order."""
    positions = adapter.positions(encoder, batch.input_ids) if batch.position_ids is None else batch.position_ids
    packed = plan.pack(positions)
    limit = adapter.max_position(encoder)
    if plan.tokens and int(packed.max()) >= limit:
        raise InputError(
            f"a text of {int(batch.mask.sum(1).max())} tokens reaches position {int(packed.max())}, but the model has "
            f"{limit} positions; tokenize with truncation=True"
        )
    types = batch.token_type_ids
    return PackedTokens(
        ids=plan.pack(batch.input_ids)[None],
        types=torch.zeros_like(packed)[None] if types is None else plan.pack(types)[None],
        positions=packed[None],
        embeds=None if batch.inputs_embeds is None else plan.pack(batch.inputs_embeds)[None],
    )
