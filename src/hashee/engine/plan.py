"""From exit layers and a mask to a Plan: where every token sits while the layers run."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from hashee.errors import InputError

SMALLEST_GROUP = 4
WORTHWHILE = 0.15
"""A group is split if that saves this share of its layout; each group is one more round of small products."""
MOST_SEATS = 1024
"""On a processor a group with more seats is split too: what attention reads should stay in cache."""


@dataclass(frozen=True)
class Group:
    """Sequences of like size that attention lays out together, so that little of the layout is empty."""

    seats: Tensor
    """(sequences, longest) packed row of each key; empty seats hold an arbitrary row."""
    occupied: Tensor | None
    """(sequences, longest) which key seats hold a token; None when all do."""
    query_seats: Tensor
    """(sequences, width) packed row of each query; seats past a sequence's last active token hold an arbitrary row."""
    sequences: slice
    visible: Tensor | None = None
    """(sequences, width, longest) which keys each query sees, where that is not the same for all of them."""


class Seating(Protocol):
    """Where the queries and keys of a layer sit while they meet."""

    @property
    def groups(self) -> tuple[Group, ...]:
        """What is laid out side by side."""

    @property
    def unseat(self) -> Tensor:
        """(active,) place of each active row among the flattened query seats of all groups, group after group."""


@dataclass(frozen=True)
class LayerPlan:
    """What one layer needs to know: how many rows it updates, and where queries and keys sit.

    The `active` rows are always the first ones of the packed batch.
    """

    plan: "Plan"
    lengths: tuple[int, ...]
    """Tokens of each sequence."""
    asking: tuple[int, ...]
    """How many of them the layer updates: the first ones of the sequence's seats."""
    active: int

    @property
    def read(self) -> int:
        """Pairs of query and key."""
        return sum(length * asking for length, asking in zip(self.lengths, self.asking, strict=True))

    @property
    def sequences(self) -> tuple[Tensor, Tensor, Tensor]:
        """The seats of each sequence, (sequences, longest), its tokens and those that ask, (sequences,) each."""
        return self.plan.seats, torch.tensor(self.lengths), torch.tensor(self.asking)

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The sequences with a query, laid out side by side with others of like size."""
        return tuple(
            self._group(first, last)
            for first, last in split_by_size(self.lengths, self.asking, most_seats=self.most_seats)
            if max(self.asking[first:last])  # sequences with no active token left cost nothing
        )

    @property
    def most_seats(self) -> int | None:
        """Seats above which a group is split in any case."""
        return MOST_SEATS if self.plan.seats.device.type == "cpu" and not torch.is_grad_enabled() else None

    def _group(self, first: int, last: int) -> Group:
        longest, width = max(self.lengths[first:last]), max(self.asking[first:last])
        full = min(self.lengths[first:last]) == longest
        return Group(
            seats=self.plan.seats[first:last, :longest],
            occupied=None if full else self.plan.occupied[first:last, :longest],
            query_seats=self.plan.seats[first:last, :width].clamp(max=self.active - 1),
            sequences=slice(first, last),
        )

    @property
    def unseat(self) -> Tensor:
        """(active,) place of each active row among the flattened query seats of all groups, group after group."""
        offsets = [0] * len(self.lengths)  # where the query seats of each sequence begin
        seated = 0
        for group in self.groups:
            for number in range(group.sequences.start, group.sequences.stop):
                offsets[number] = seated
                seated += group.query_seats.shape[1]
        place = torch.tensor(offsets, device=self.plan.rows.device)
        return place.index_select(0, self.plan.sequence[: self.active]) + self.plan.rank[: self.active]


@dataclass(frozen=True)
class Plan:
    """The packed order of a batch, fixed before the first layer and valid for all of them.

    Rows are sorted by falling exit layer over the whole batch, so the rows that a layer updates are a prefix
    of the packed states: a view, never a gather. Within a sequence the same order holds, so its active tokens
    are a prefix of its seats too.
    """

    batch: int
    length: int
    rows: Tensor
    """(tokens,) place of each packed row in the caller's flattened (batch * length) input."""
    seats: Tensor
    """(sequences, longest) packed row of each sequence's tokens by falling exit layer; empty seats hold row 0."""
    occupied: Tensor
    """(sequences, longest) which seats hold a token."""
    sequence: Tensor
    """(tokens,) sequence of each packed row; those with the most to do come first, those without a token not at all."""
    rank: Tensor
    """(tokens,) seat of each packed row within its sequence."""
    active: tuple[int, ...]
    """Rows that layer l updates, for l = 0 .. num_layers; entry 0 is the number of tokens."""
    alive: tuple[tuple[int, ...], ...]
    """Rows that layer l updates in each sequence, for l = 0 .. num_layers."""

    @property
    def tokens(self) -> int:
        """Number of real tokens in the batch."""
        return self.active[0]

    def layer(self, layer: int) -> LayerPlan:
        """Return what layer `layer` (1-based) needs."""
        return LayerPlan(self, lengths=self.alive[0], asking=self.alive[layer], active=self.active[layer])

    @cached_property
    def batch_rows(self) -> Tensor:
        """(sequences,) row of each sequence in the caller's batch."""
        return self.rows.index_select(0, self.seats[:, :1].flatten()) // max(self.length, 1)

    @cached_property
    def first_rows(self) -> Tensor:
        """(sequences,) packed row of the first real token of each sequence."""
        if not self.tokens:
            return self.rows
        index = self.rows[self.seats].masked_fill(~self.occupied, self.batch * self.length)
        return self.seats.gather(1, index.argmin(1, keepdim=True)).squeeze(1)

    def select(self, keep: Tensor) -> "Selection":
        """Return the plan of the sequences that stay in the batch, in the same order and with the same batch rows.

        keep: (batch,) bool, whether each row of the caller's batch stays; those that have left before stay away.
        """
        if keep.shape != (self.batch,) or keep.dtype != torch.bool:
            raise InputError(f"keep must be ({self.batch},) booleans, not {keep.dtype} of {tuple(keep.shape)}")
        stays = keep.to(self.rows.device).index_select(0, self.batch_rows)
        row_stays = stays.index_select(0, self.sequence)
        sequences, rows = stays.nonzero().squeeze(1), row_stays.nonzero().squeeze(1)
        numbers = sequences.tolist()
        alive = tuple(tuple(level[number] for number in numbers) for level in self.alive)
        longest = max(alive[0], default=0)
        new_row, new_sequence = row_stays.cumsum(0) - 1, stays.cumsum(0) - 1
        occupied = self.occupied.index_select(0, sequences)[:, :longest]
        # Leaving out rows keeps the others sorted, so what a layer updates is still a prefix.
        plan = Plan(
            batch=self.batch,
            length=self.length,
            rows=self.rows.index_select(0, rows),
            seats=new_row[self.seats.index_select(0, sequences)[:, :longest]].masked_fill(~occupied, 0),
            occupied=occupied,
            sequence=new_sequence.index_select(0, self.sequence.index_select(0, rows)),
            rank=self.rank.index_select(0, rows),
            active=tuple(sum(level) for level in alive),
            alive=alive,
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
    """The plan of some of a batch's sequences, and where their rows were in the plan before."""

    plan: Plan
    rows: Tensor
    """(tokens,) rising: the earlier packed row of each packed row."""
    sequences: Tensor
    """(sequences,) rising: the earlier number of each sequence."""


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
    row_in_batch = source.div(max(length, 1), rounding_mode="floor")
    histogram = torch.bincount(row_in_batch * levels + exits, minlength=batch * levels).view(batch, levels)
    alive = histogram.flip(1).cumsum(1).flip(1)

    # Sequences are numbered by falling work, so that those of like size are neighbours. Those without any token would
    # give softmax nothing to sum over: they come last and get no number.
    by_work = (alive.sum(1) * levels * max(length, 1) + alive[:, 0]).argsort(descending=True, stable=True)
    number = torch.empty_like(by_work).index_copy_(0, by_work, torch.arange(batch, device=mask.device))
    sequence = number.index_select(0, row_in_batch).index_select(0, order)
    counts = alive.index_select(0, by_work).t().tolist()
    sequences = sum(1 for count in counts[0] if count)
    longest = max(counts[0], default=0)

    # A second stable sort, by sequence, keeps the falling exit layers within each one.
    by_sequence = sequence.argsort(stable=True)
    ends = alive[:, 0].index_select(0, by_work).cumsum(0)
    first = (ends - alive[:, 0].index_select(0, by_work)).index_select(0, sequence.index_select(0, by_sequence))
    numbers = torch.arange(len(rows), device=mask.device)
    rank = torch.empty_like(rows).index_copy_(0, by_sequence, numbers - first)
    seats = rows.new_zeros(sequences, longest)
    seats[sequence, rank] = numbers
    occupied = torch.zeros_like(seats, dtype=torch.bool)
    occupied[sequence, rank] = True
    return Plan(
        batch=batch,
        length=length,
        rows=rows,
        seats=seats,
        occupied=occupied,
        sequence=sequence,
        rank=rank,
        active=tuple(sum(level) for level in counts),
        alive=tuple(tuple(level[:sequences]) for level in counts),
    )


def split_by_size(
    lengths: Sequence[int], queries: Sequence[int], first: int = 0, most_seats: int | None = None
) -> list[tuple[int, int]]:
    """Cut neighbouring sequences into groups wherever two halves leave clearly fewer empty seats than the whole.

    lengths, queries: keys and queries of each sequence. most_seats: larger groups are cut in any case, as long as they
    have several sequences. Returns (first, last) of each group.
    """
    whole = _layout(lengths, queries)
    middle = len(lengths) // 2
    halves = ((lengths[:middle], queries[:middle]), (lengths[middle:], queries[middle:]))
    saved = whole - sum(_layout(*half) for half in halves)
    is_large = most_seats is not None and len(lengths) > 1 and len(lengths) * max(lengths) > most_seats
    if not is_large and (len(lengths) < 2 * SMALLEST_GROUP or saved < whole * WORTHWHILE):
        return [(first, first + len(lengths))] if lengths else []
    left, right = halves
    return split_by_size(*left, first, most_seats) + split_by_size(*right, first + middle, most_seats)


def _layout(lengths: Sequence[int], queries: Sequence[int]) -> int:
    """Count the pairs of query seat and key seat of one group."""
    return len(lengths) * max(lengths, default=0) * max(queries, default=0)
