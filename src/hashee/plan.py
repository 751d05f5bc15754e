"""From exit layers and a mask to a Plan: where every token sits while the layers run."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class LayerPlan:
    """What one layer needs to know: how many rows it updates, and where their queries sit.

    The `active` rows are always the first ones of the packed batch.
    """

    active: int
    width: int
    """Most active tokens in any one sequence."""
    query_seats: Tensor
    """(sequences, width) packed row of each query; seats past a sequence's last active token hold an arbitrary row."""
    unseat: Tensor
    """(active,) place of each active row in the flattened query seats."""


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
    occupied: Tensor | None
    """(sequences, longest) which seats hold a token; None when all do. Sequences without a token are left out."""
    sequence: Tensor
    """(tokens,) sequence of each packed row."""
    rank: Tensor
    """(tokens,) seat of each packed row within its sequence."""
    active: tuple[int, ...]
    """Rows that layer l updates, for l = 0 .. num_layers; entry 0 is the number of tokens."""
    widths: tuple[int, ...]
    """Most rows that layer l updates in any one sequence, for l = 0 .. num_layers."""

    @property
    def tokens(self) -> int:
        """Number of real tokens in the batch."""
        return self.active[0]

    def layer(self, layer: int) -> LayerPlan:
        """Return what layer `layer` (1-based) needs."""
        active, width = self.active[layer], self.widths[layer]
        return LayerPlan(
            active=active,
            width=width,
            query_seats=self.seats[:, :width].clamp(max=active - 1),
            unseat=self.sequence[:active] * width + self.rank[:active],
        )

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
    source = mask.flatten().nonzero().squeeze(1)
    exits = exit_layers.flatten().index_select(0, source)
    order = exits.argsort(descending=True, stable=True)
    rows = source.index_select(0, order)

    # Sequences without any token would give softmax nothing to sum over: number only the others.
    filled = mask.any(dim=1)
    sequence_of_source = (filled.cumsum(0) - 1).index_select(0, source.div(max(length, 1), rounding_mode="floor"))
    sequences = int(filled.sum())
    sequence = sequence_of_source.index_select(0, order)

    levels = num_layers + 1
    histogram = torch.bincount(sequence_of_source * levels + exits, minlength=sequences * levels)
    alive = histogram.view(sequences, levels).flip(1).cumsum(1).flip(1)
    active = alive.sum(0).tolist()
    widths = alive.amax(0).tolist() if sequences else [0] * levels

    # A second stable sort, by sequence, keeps the falling exit layers within each one.
    by_sequence = sequence.argsort(stable=True)
    first = (alive[:, 0].cumsum(0) - alive[:, 0]).index_select(0, sequence.index_select(0, by_sequence))
    numbers = torch.arange(len(rows), device=mask.device)
    rank = torch.empty_like(rows).index_copy_(0, by_sequence, numbers - first)
    seats = rows.new_zeros(sequences, widths[0])
    seats[sequence, rank] = numbers

    full = sequences * widths[0] == len(rows)
    occupied = None if full else numbers.new_tensor(range(widths[0])) < alive[:, :1]
    return Plan(batch, length, rows, seats, occupied, sequence, rank, tuple(active), tuple(widths))
