"""Attention within a window: queries are laid out with the band of keys around them, never with a whole long text.

The tokens of a text, in the order of its columns, are cut into blocks. The queries of one block see no further than the
block and a window on either side, so that band is all they are laid out with; near an end of the text it is shifted
inwards. Every band of a text has the same number of keys, so the cost follows from lengths alone. What lies in the
band but outside of a query's own window is masked. Texts no longer than a band are laid out whole.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from hashee.cost.macs import block_length
from hashee.engine.plan import Group, LayerPlan, Seating, split_by_size


@dataclass(frozen=True)
class Bands:
    """The queries and keys of a layer with a window, laid out block by block."""

    groups: tuple[Group, ...]
    unseat: Tensor
    """(active,) place of each active row among the flattened query seats of all groups, group after group."""


def within_window(layer: LayerPlan, window: int) -> Seating:
    """Lay a layer out for queries that see keys at most `window` columns away, in the caller's rows."""
    plan, active = layer.plan, layer.active
    if plan.length <= window + 1:
        return layer  # everybody sees everybody
    block, device = block_length(window), plan.rows.device
    column = plan.rows % plan.length
    lengths = torch.tensor(layer.lengths, device=device)
    before = lengths.cumsum(0) - lengths  # tokens of the sequences before
    by_column = (plan.sequence * plan.length + column).argsort()
    place = torch.empty_like(by_column).index_copy_(0, by_column, torch.arange(plan.tokens, device=device))

    # Which block each query is in; blocks without a query cost nothing.
    sequence = plan.sequence[:active]
    most = plan.length // block + 1
    bands = lengths.clamp(max=block + 2 * window)
    number = (place[:active] - before[sequence]).div(block, rounding_mode="floor")
    number = torch.where(bands[sequence] < lengths[sequence], number, 0)
    blocks, block_of_query, queries = (sequence * most + number).unique(return_inverse=True, return_counts=True)
    sequence, number = blocks.div(most, rounding_mode="floor"), blocks % most
    keys = bands[sequence]
    first_key = before[sequence] + torch.minimum((number * block - window).clamp(min=0), lengths[sequence] - keys)

    # Blocks of like size are neighbours, so that little of a group is empty.
    order = (keys * (plan.length + 1) + queries).argsort(descending=True)
    rank = torch.empty_like(order).index_copy_(0, order, torch.arange(len(order), device=device))
    block_of_query = rank[block_of_query]
    keys, queries, first_key = keys[order], queries[order], first_key[order]
    rows = block_of_query.argsort(stable=True)  # packed rows of the queries, block after block
    first_query = queries.cumsum(0) - queries

    groups: list[Group] = []
    starts: list[int] = []  # where the query seats of each block begin
    seated = 0
    key_counts, query_counts = keys.tolist(), queries.tolist()
    for first, last in split_by_size(key_counts, query_counts, most_seats=layer.most_seats):
        part, width, longest = slice(first, last), max(query_counts[first:last]), max(key_counts[first:last])
        # Empty seats hold a token of the block, so that each sees at least itself.
        query_seats = rows[first_query[part, None] + _count(width, queries[part])]
        seats = by_column[first_key[part, None] + _count(longest, keys[part])]
        distance = column[query_seats][:, :, None] - column[seats][:, None, :]
        occupied = torch.arange(longest, device=device) < keys[part, None]
        visible = (distance.abs() <= window) & occupied[:, None, :]
        groups.append(Group(seats, occupied, query_seats, part, visible))
        starts += range(seated, seated + (last - first) * width, width)
        seated += (last - first) * width
    in_block = torch.empty_like(rows).index_copy_(0, rows, torch.arange(active, device=device))
    in_block -= first_query[block_of_query]
    return Bands(tuple(groups), torch.tensor(starts, device=device)[block_of_query] + in_block)


def _count(width: int, sizes: Tensor) -> Tensor:
    """Count from 0 to each size, and stay at its last number. sizes: (blocks,). Returns (blocks, width)"""
    return torch.minimum(torch.arange(width, device=sizes.device), sizes[:, None] - 1)
