"""Local attention: queries are multiplied with the band of keys around them, not with all keys of a long text.

The tokens of a text, in the order of its columns, are split into blocks. The queries of one block attend to the block
and to a window on either side of it; this band holds all keys that the block is multiplied with. Near an end of the
text the band is shifted inwards, so that every band of a text has the same number of keys and the cost follows from
the lengths alone. Keys in the band but outside a query's own window are masked. A text no longer than a band is one
block.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from hashee.cost.macs import block_length
from hashee.engine.plan import AttentionLayout, Group, LayerPlan, split_by_size


@dataclass(frozen=True)
class Bands:
    """The slots of the queries and keys of a local layer, block by block."""

    groups: tuple[Group, ...]
    slot_of_row: Tensor
    """(active,) index of each active row in the flattened query slots of all groups, group after group."""


def within_window(layer: LayerPlan, window: int) -> AttentionLayout:
    """Return the slots of a layer in which queries attend to keys at most `window` columns of the input away."""
    plan, active = layer.plan, layer.active
    if plan.length <= window + 1:
        return layer  # every query attends to every key
    block, device = block_length(window), plan.rows.device
    column = plan.rows % plan.length
    lengths = torch.tensor(layer.lengths, device=device)
    before = lengths.cumsum(0) - lengths  # tokens of all earlier sequences
    by_column = (plan.sequence * plan.length + column).argsort()
    index = torch.empty_like(by_column).index_copy_(0, by_column, torch.arange(plan.tokens, device=device))

    # The block of each query; blocks without a query are left out.
    sequence = plan.sequence[:active]
    most = plan.length // block + 1
    bands = lengths.clamp(max=block + 2 * window)
    number = (index[:active] - before[sequence]).div(block, rounding_mode="floor")
    number = torch.where(bands[sequence] < lengths[sequence], number, 0)
    blocks, block_of_query, queries = (sequence * most + number).unique(return_inverse=True, return_counts=True)
    sequence, number = blocks.div(most, rounding_mode="floor"), blocks % most
    keys = bands[sequence]
    first_key = before[sequence] + torch.minimum((number * block - window).clamp(min=0), lengths[sequence] - keys)

    # Blocks of similar size become neighbours, so that few slots of a group are empty.
    order = (keys * (plan.length + 1) + queries).argsort(descending=True)
    rank = torch.empty_like(order).index_copy_(0, order, torch.arange(len(order), device=device))
    block_of_query = rank[block_of_query]
    keys, queries, first_key = keys[order], queries[order], first_key[order]
    rows = block_of_query.argsort(stable=True)  # packed rows of the queries, block after block
    first_query = queries.cumsum(0) - queries

    groups: list[Group] = []
    starts: list[int] = []  # index of the first query slot of each block
    used = 0
    key_counts, query_counts = keys.tolist(), queries.tolist()
    for first, last in split_by_size(key_counts, query_counts, max_slots=layer.max_slots):
        part, width, longest = slice(first, last), max(query_counts[first:last]), max(key_counts[first:last])
        # Empty query slots repeat a token of the block, so that each has at least one visible key.
        query_slots = rows[first_query[part, None] + _count(width, queries[part])]
        key_slots = by_column[first_key[part, None] + _count(longest, keys[part])]
        distance = column[query_slots][:, :, None] - column[key_slots][:, None, :]
        occupied = torch.arange(longest, device=device) < keys[part, None]
        visible = (distance.abs() <= window) & occupied[:, None, :]
        groups.append(Group(key_slots, occupied, query_slots, part, visible))
        starts += range(used, used + (last - first) * width, width)
        used += (last - first) * width
    in_block = torch.empty_like(rows).index_copy_(0, rows, torch.arange(active, device=device))
    in_block -= first_query[block_of_query]
    return Bands(tuple(groups), torch.tensor(starts, device=device)[block_of_query] + in_block)


def _count(width: int, sizes: Tensor) -> Tensor:
    """Return 0, 1, ... up to each size - 1, which is then repeated. sizes: (blocks,). Returns (blocks, width)."""
    return torch.minimum(torch.arange(width, device=sizes.device), sizes[:, None] - 1)
