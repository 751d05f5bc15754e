"""From exit layers and a mask to a Plan: where every token sits while the layers run."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

SMALLEST_GROUP = 4
WORTHWHILE = 0.15
"""A group is split if that saves this share of its layout; each group is one more round of small products."""


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


@dataclass(frozen=True)
class LayerPlan:
    """What one layer needs to know: how many rows it updates, and where queries and keys sit.

    The `active` rows are always the first ones of the packed batch.
    """

    active: int
    groups: tuple[Group, ...]
    unseat: Tensor
    """(active,) place of each active row among the flattened query seats of all groups, one group after the other."""

    @property
    def read(self) -> int:
        """Pairs of query seat and key seat, empty ones included: what attention has to go through."""
        return sum(group.query_seats.numel() * group.seats.shape[1] for group in self.groups)


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
        active, lengths, queries = self.active[layer], self.alive[0], self.alive[layer]
        groups: list[Group] = []
        offsets: list[int] = []  # where the query seats of each sequence begin
        seated = 0
        for first, last in split_by_size(lengths, queries):
            longest, width = max(lengths[first:last]), max(queries[first:last])
            offsets += [seated + width * number for number in range(last - first)]
            seated += width * (last - first)
            if width:  # sequences with no active token left cost nothing
                full = min(lengths[first:last]) == longest
                group = Group(
                    seats=self.seats[first:last, :longest],
                    occupied=None if full else self.occupied[first:last, :longest],
                    query_seats=self.seats[first:last, :width].clamp(max=active - 1),
                    sequences=slice(first, last),
                )
                groups.append(group)
        place = torch.tensor(offsets, device=self.rows.device)
        unseat = place.index_select(0, self.sequence[:active]) + self.rank[:active]
        return LayerPlan(active=active, groups=tuple(groups), unseat=unseat)

    def pack(self, padded: Tensor) -> Tensor:
        """Take the real tokens of a (batch, length, ...) tensor in packed order: (tokens, ...)."""
        return padded.flatten(0, 1).index_select(0, self.rows)

    def unpack(self, packed: Tensor) -> Tensor:
        """Put (tokens, ...) rows back into the caller's (batch, length, ...) order; padding becomes zero."""
        padded = packed.new_zeros(self.batch * self.length, *packed.shape[1:])
        return padded.index_copy(0, self.rows, packed).view(self.batch, self.length, *packed.shape[1:])


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


def split_by_size(lengths: Sequence[int], queries: Sequence[int], first: int = 0) -> list[tuple[int, int]]:
    """Cut neighbouring sequences into groups wherever two halves leave clearly fewer empty seats than the whole.

    lengths, queries: keys and queries of each sequence. Returns (first, last) of each group.
    """
    whole = _layout(lengths, queries)
    middle = len(lengths) // 2
    halves = ((lengths[:middle], queries[:middle]), (lengths[middle:], queries[middle:]))
    if len(lengths) < 2 * SMALLEST_GROUP or whole - sum(_layout(*half) for half in halves) < whole * WORTHWHILE:
        return [(first, first + len(lengths))] if lengths else []
    left, right = halves
    return split_by_size(*left, first) + split_by_size(*right, first + middle)


def _layout(lengths: Sequence[int], queries: Sequence[int]) -> int:
    """Count the pairs of query seat and key seat of one group."""
    return len(lengths) * max(lengths, default=0) * max(queries, default=0)
