"""From exit layers and a mask to a Plan: the packed row and the attention slot of every token."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from hashee.errors import CheckpointError, InputError

SMALLEST_GROUP = 4
"""Sequences of a group that is not split any more."""
MIN_SAVING = 0.15
"""A group is split if that saves at least this share of its slots; each group costs one more round of products."""
MAX_SLOTS = 1024
"""On a CPU a group with more slots is split too, so that what attention reads stays in cache."""


@dataclass(frozen=True)
class Group:
    """Sequences of similar size that attention runs together, so that few slots are empty."""

    key_slots: Tensor
    """(sequences, longest) packed row of each key; empty slots hold an arbitrary row."""
    occupied: Tensor | None
    """(sequences, longest) which key slots hold a token; None when all do."""
    query_slots: Tensor
    """(sequences, width) packed row of each query; slots past a sequence's last active token hold an arbitrary row."""
    sequences: slice
    visible: Tensor | None = None
    """(sequences, width, longest) which keys each query may attend to; None: all that are occupied."""


class AttentionLayout(Protocol):
    """The slots of the queries and keys of a layer."""

    @property
    def groups(self) -> tuple[Group, ...]:
        """The groups, one after the other."""

    @property
    def slot_of_row(self) -> Tensor:
        """(active,) index of each active row in the flattened query slots of all groups, group after group."""


@dataclass(frozen=True)
class LayerPlan:
    """What one layer needs to know: how many rows it updates, and the slots of queries and keys.

    The `active` rows are always the first ones of the packed batch.
    """

    plan: "Plan"
    lengths: tuple[int, ...]
    """Tokens of each sequence."""
    queries: tuple[int, ...]
    """How many of them the layer updates: the first ones of the sequence's slots."""
    active: int

    @property
    def pairs(self) -> int:
        """Number of pairs of query and key."""
        return sum(length * queries for length, queries in zip(self.lengths, self.queries, strict=True))

    @property
    def sequences(self) -> tuple[Tensor, Tensor, Tensor]:
        """Slots of each sequence, (sequences, longest), and its numbers of tokens and queries, (sequences,) each."""
        return self.plan.slots, torch.tensor(self.lengths), torch.tensor(self.queries)

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The sequences that have a query, grouped with others of similar size."""
        return tuple(
            self._group(first, last)
            for first, last in split_by_size(self.lengths, self.queries, max_slots=self.max_slots)
            if max(self.queries[first:last])  # sequences with no active token left cost nothing
        )

    @property
    def max_slots(self) -> int | None:
        """Slots above which a group is always split; None: no limit."""
        return MAX_SLOTS if self.plan.slots.device.type == "cpu" and not torch.is_grad_enabled() else None

    def _group(self, first: int, last: int) -> Group:
        longest, width = max(self.lengths[first:last]), max(self.queries[first:last])
        full = min(self.lengths[first:last]) == longest
        return Group(
            key_slots=self.plan.slots[first:last, :longest],
            occupied=None if full else self.plan.occupied[first:last, :longest],
            query_slots=self.plan.slots[first:last, :width].clamp(max=self.active - 1),
            sequences=slice(first, last),
        )

    @property
    def slot_of_row(self) -> Tensor:
        """(active,) index of each active row in the flattened query slots of all groups, group after group."""
        offsets = [0] * len(self.lengths)  # where the query slots of each sequence begin
        before = 0
        for group in self.groups:
            for number in range(group.sequences.start, group.sequences.stop):
                offsets[number] = before
                before += group.query_slots.shape[1]
        first_slot = torch.tensor(offsets, device=self.plan.rows.device)
        return first_slot.index_select(0, self.plan.sequence[: self.active]) + self.plan.rank[: self.active]


@dataclass(frozen=True)
class Plan:
    """The packed order of a batch, fixed before the first layer and valid for all of them.

    Rows are sorted by falling exit layer over the whole batch, so the rows that a layer updates are a prefix
    of the packed states: a view, never a gather. Within a sequence the same order holds, so its active tokens
    are a prefix of its slots too.
    """

    batch: int
    length: int
    rows: Tensor
    """(tokens,) index of each packed row in the caller's flattened (batch * length) input."""
    slots: Tensor
    """(sequences, longest) packed row of each sequence's tokens by falling exit layer; empty slots hold row 0."""
    occupied: Tensor
    """(sequences, longest) which slots hold a token."""
    sequence: Tensor
    """(tokens,) sequence of each packed row, numbered by falling work; sequences without a token have no number."""
    rank: Tensor
    """(tokens,) slot of each packed row within its sequence."""
    active: tuple[int, ...]
    """Rows that layer l updates, for l = 0 .. num_layers; entry 0 is the number of tokens."""
    active_by_sequence: tuple[tuple[int, ...], ...]
    """Rows that layer l updates in each sequence, for l = 0 .. num_layers."""

    @property
    def tokens(self) -> int:
        """Number of real tokens in the batch."""
        return self.active[0]

    def layer(self, layer: int) -> LayerPlan:
        """Return what layer `layer` (1-based) needs."""
        lengths, queries = self.active_by_sequence[0], self.active_by_sequence[layer]
        return LayerPlan(self, lengths, queries, self.active[layer])

    @cached_property
    def batch_rows(self) -> Tensor:
        """(sequences,) row of each sequence in the caller's batch."""
        return self.rows.index_select(0, self.slots[:, :1].flatten()) // max(self.length, 1)

    @cached_property
    def first_rows(self) -> Tensor:
        """(sequences,) packed row of the first real token of each sequence."""
        if not self.tokens:
            return self.rows
        index = self.rows[self.slots].masked_fill(~self.occupied, self.batch * self.length)
        return self.slots.gather(1, index.argmin(1, keepdim=True)).squeeze(1)

    def select(self, keep: Tensor) -> "Selection":
        """Return the plan of the sequences that stay in the batch, in the same order and with the same batch rows.

        keep: (batch,) bool, whether each row of the caller's batch stays; rows that have left before cannot return.
        """
        if keep.shape != (self.batch,) or keep.dtype != torch.bool:
            raise InputError(f"keep must be ({self.batch},) booleans, not {keep.dtype} of {tuple(keep.shape)}")
        stays = keep.to(self.rows.device).index_select(0, self.batch_rows)
        row_stays = stays.index_select(0, self.sequence)
        sequences, rows = stays.nonzero().squeeze(1), row_stays.nonzero().squeeze(1)
        numbers = sequences.tolist()
        active = tuple(tuple(level[number] for number in numbers) for level in self.active_by_sequence)
        longest = max(active[0], default=0)
        new_row, new_sequence = row_stays.cumsum(0) - 1, stays.cumsum(0) - 1
        occupied = self.occupied.index_select(0, sequences)[:, :longest]
        # Leaving out rows keeps the others sorted, so what a layer updates is still a prefix.
        plan = Plan(
            batch=self.batch,
            length=self.length,
            rows=self.rows.index_select(0, rows),
            slots=new_row[self.slots.index_select(0, sequences)[:, :longest]].masked_fill(~occupied, 0),
            occupied=occupied,
            sequence=new_sequence.index_select(0, self.sequence.index_select(0, rows)),
            rank=self.rank.index_select(0, rows),
            active=tuple(sum(level) for level in active),
            active_by_sequence=active,
        )
        return Selection(plan, rows, sequences)

    def pack(self, padded: Tensor) -> Tensor:
        """Take the real tokens of a (batch, length, ...) tensor in packed order: (tokens, ...)."""
        return padded.flatten(0, 1).index_select(0, self.rows)

    def unpack(self, packed: Tensor) -> Tensor:
        """Put (tokens, ...) rows back into the caller's (batch, length, ...) order; padding becomes zero."""
        padded = packed.new_zeros(self.batch * self.length, *packed.shape[1:])
        return padded.index_copy(0, self.rows, packed).view(self.batch, self.length, *packed.shape[1:])


@dataclass(frozen=True)
class Selection:
    """The plan of some of a batch's sequences, and the rows that theirs were in the earlier plan."""

    plan: Plan
    rows: Tensor
    """(tokens,) rising: the earlier packed row of each packed row."""
    sequences: Tensor
    """(sequences,) rising: the earlier number of each sequence."""


def exit_layer_of_each(exit_layers: Tensor, input_ids: Tensor, mask: Tensor, num_layers: int) -> Tensor:
    """Return the exit layer of every position, checking that every real token is in the table: (batch, length).

    exit_layers: (vocabulary,); input_ids, mask: (batch, length), the mask being True for real tokens.
    """
    ids = input_ids.masked_fill(~mask, 0)
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


def make_plan(exit_layers: Tensor, mask: Tensor, num_layers: int) -> Plan:
    """Order the real tokens of a batch by exit layer.

    exit_layers: (batch, length) integers in 0..num_layers; mask: (batch, length) bool, True for real tokens.
    """
    batch, length = mask.shape
    levels = num_layers + 1
    source = mask.flatten().nonzero().squeeze(1)
    exits = exit_layers.flatten().index_select(0, source)
    order = exits.argsort(descending=True, stable=True)
    rows = source.index_select(0, order)
    if batch == 1 and len(rows):
        return _plan_of_one(rows, exits.tolist(), length, num_layers)
    row_in_batch = source.div(max(length, 1), rounding_mode="floor")
    histogram = torch.bincount(row_in_batch * levels + exits, minlength=batch * levels).view(batch, levels)
    active = histogram.flip(1).cumsum(1).flip(1)

    # Sequences are numbered by falling work, so that those of similar size are neighbours. Sequences without any token
    # would give softmax nothing to sum over: they come last and get no number.
    by_work = (active.sum(1) * levels * max(length, 1) + active[:, 0]).argsort(descending=True, stable=True)
    number = torch.empty_like(by_work).index_copy_(0, by_work, torch.arange(batch, device=mask.device))
    sequence = number.index_select(0, row_in_batch).index_select(0, order)
    counts = active.index_select(0, by_work).t().tolist()
    sequences = sum(1 for count in counts[0] if count)
    longest = max(counts[0], default=0)

    # A second stable sort, by sequence, keeps the falling exit layers within each one.
    by_sequence = sequence.argsort(stable=True)
    ends = active[:, 0].index_select(0, by_work).cumsum(0)
    first = (ends - active[:, 0].index_select(0, by_work)).index_select(0, sequence.index_select(0, by_sequence))
    numbers = torch.arange(len(rows), device=mask.device)
    rank = torch.empty_like(rows).index_copy_(0, by_sequence, numbers - first)
    slots = rows.new_zeros(sequences, longest)
    slots[sequence, rank] = numbers
    occupied = torch.zeros_like(slots, dtype=torch.bool)
    occupied[sequence, rank] = True
    return Plan(
        batch=batch,
        length=length,
        rows=rows,
        slots=slots,
        occupied=occupied,
        sequence=sequence,
        rank=rank,
        active=tuple(sum(level) for level in counts),
        active_by_sequence=tuple(tuple(level[:sequences]) for level in counts),
    )


def _plan_of_one(rows: Tensor, exits: list[int], length: int, num_layers: int) -> Plan:
    """Do what `make_plan` does for one sequence, whose packed rows are its slots, with few small operations.

    rows: (tokens,) indices of the real tokens by falling exit layer; exits: of these tokens, in any order.
    """
    active = tuple(sum(1 for exit_layer in exits if exit_layer >= layer) for layer in range(num_layers + 1))
    numbers = torch.arange(len(rows), device=rows.device)
    return Plan(
        batch=1,
        length=length,
        rows=rows,
        slots=numbers[None],
        occupied=torch.ones(1, len(rows), dtype=torch.bool, device=rows.device),
        sequence=torch.zeros_like(rows),
        rank=numbers,
        active=active,
        active_by_sequence=tuple((count,) for count in active),
    )


def split_by_size(
    lengths: Sequence[int], queries: Sequence[int], first: int = 0, max_slots: int | None = None
) -> list[tuple[int, int]]:
    """Split neighbouring sequences into groups where two halves have clearly fewer empty slots than the whole.

    lengths, queries: keys and queries of each sequence. max_slots: larger groups are always split if they have
    several sequences. Returns (first, last) of each group.
    """
    whole = _slot_pairs(lengths, queries)
    middle = len(lengths) // 2
    halves = ((lengths[:middle], queries[:middle]), (lengths[middle:], queries[middle:]))
    saved = whole - sum(_slot_pairs(*half) for half in halves)
    is_large = max_slots is not None and len(lengths) > 1 and len(lengths) * max(lengths) > max_slots
    if not is_large and (len(lengths) < 2 * SMALLEST_GROUP or saved < whole * MIN_SAVING):
        return [(first, first + len(lengths))] if lengths else []
    left, right = halves
    return split_by_size(*left, first, max_slots) + split_by_size(*right, first + middle, max_slots)


def _slot_pairs(lengths: Sequence[int], queries: Sequence[int]) -> int:
    """Return the number of pairs of query slot and key slot in one group."""
    return len(lengths) * max(lengths, default=0) * max(queries, default=0)
