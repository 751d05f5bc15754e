"""Decoders whose tokens exit: a position is updated up to the exit layer of its input token, known before the step.

After its exit layer the state of a position is frozen; every later layer still projects it to a key and a value, which
later positions attend to and which the cache keeps. A step with the cache therefore computes what the whole text so
far would give: layer by layer the keys and values of all new positions, and for the active ones the rest.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Cache, EncoderDecoderCache

from hashee.engine.attention import PositionTerms
from hashee.engine.block import Dropout, feed_forward
from hashee.engine.decoder_adapter import DecoderAdapter, DecoderBlock
from hashee.engine.linear import project
from hashee.engine.parts import AttentionPart, drop

Decide: TypeAlias = Callable[[int, Tensor, Tensor], Tensor]
"""From a layer that has run, the states after it, (batch, length, width), and the exit layers, (batch, length), to exit
layers among which positions may exit at that layer that were to go on."""


@dataclass(frozen=True)
class DecoderBatch:
    """What a caller hands to a decoder: new positions, and what they may attend to."""

    input_ids: Tensor
    """(batch, length)"""
    exits: Tensor
    """(batch, length) exit layer of every position; 0 for padding, which is never updated."""
    positions: Tensor
    """(batch or 1, length) position ids."""
    mask: Tensor | None = None
    """(batch, positions before and now) bool, True for real ones; None: all are."""
    visible: Tensor | None = None
    """(batch, length, keys) bool, who may attend to whom, if a caller has said so instead of a mask."""
    inputs_embeds: Tensor | None = None
    """(batch, length, width) word embeddings in place of a look-up; the ids still decide the exits."""
    source: Tensor | None = None
    """(batch, source tokens, width) states of the encoder."""
    source_mask: Tensor | None = None
    """(batch, source tokens) bool; None: all are real."""
    cache: Any = None
    """A `Cache` of transformers with the keys and values of earlier positions, or None."""


@dataclass(frozen=True)
class Updates:
    """The positions that a layer updates, and their slots by row of the batch, as attention takes them."""

    positions: Tensor | None
    """(active,) rising: index of each in the flattened (batch * length); None: all positions."""
    rows: Tensor | None
    """(rows,) rising: rows of the batch with an active position; None: all rows."""
    columns: Tensor
    """(rows, slots) column of each slot; empty slots, after the others, hold a column that is not active."""
    occupied: Tensor
    """(rows, slots) which slots hold a position."""


@dataclass(frozen=True)
class _Step:
    """What all layers of one call share."""

    batch: DecoderBatch
    terms: PositionTerms
    past: int
    """Positions in the cache before the new ones."""


@dataclass(frozen=True)
class _Keys:
    """Keys and values of a layer, (batch, heads, tokens, head width) each, and who may attend to them."""

    key: Tensor
    value: Tensor
    visible: Tensor | None
    """(batch or 1, length or 1, tokens) bool; None: everybody to all."""


def find_updates(exits: Tensor, layer: int) -> Updates | None:
    """Return the positions that a layer updates, or None if there are none. exits: (batch, length)."""
    active = exits >= layer
    batch, length = active.shape
    counts = active.sum(1)
    total = int(counts.sum())
    if not total:
        return None
    if total == batch * length:
        columns = torch.arange(length, device=exits.device).expand(batch, length)
        return Updates(None, None, columns, active)
    rows = counts.nonzero().squeeze(1)
    most = int(counts.max())
    # A stable sort brings the active columns of a row to its front, in their order.
    columns = (~active).to(torch.uint8).argsort(dim=1, stable=True)[rows, :most]
    occupied = torch.arange(most, device=exits.device) < counts[rows, None]
    positions = (rows[:, None] * length + columns)[occupied]
    return Updates(positions, None if len(rows) == batch else rows, columns, occupied)


# Which positions are updated depends on the texts, so torch.compile would recompile for every step.
@torch.compiler.disable  # type: ignore[untyped-decorator]
def decode(
    adapter: DecoderAdapter, decoder: Any, batch: DecoderBatch, decide: Decide | None = None
) -> Iterator[Tensor]:
    """Yield the states before the first layer and after each, (batch, length, width); the last have the final norm.

    The cache, if there is one, gets the keys and values of all positions in all layers. decide: asked after every layer
    but the last which positions exit there, whatever their tokens are.
    """
    hidden = adapter.embed(decoder, batch.input_ids, batch.inputs_embeds, batch.positions)
    yield hidden
    angles = adapter.rotary(decoder, hidden, batch.positions)
    shape = batch.input_ids.shape
    terms = PositionTerms()
    if angles is not None:
        terms = PositionTerms(rotary=tuple(part.expand(*shape, -1).flatten(0, 1) for part in angles))  # type: ignore[arg-type]
    layer_drop = adapter.layer_drop(decoder) if decoder.training else 0.0
    layers = adapter.layers(decoder)
    step = _Step(batch, terms, past=0 if batch.cache is None else int(batch.cache.get_seq_length()))
    exits = batch.exits
    updates, changes = None, {0, *exits.unique().tolist()}
    for layer, block in zip(layers, adapter.blocks(decoder), strict=True):
        number = block.block.layer
        if decide is not None or number - 1 in changes:  # the others update the same positions as the layer below
            updates = find_updates(exits, number)
        if not (layer_drop and torch.rand(()) < layer_drop):
            hidden = _layer_function(layer)(block, hidden, step, updates)
        if decide is not None and layer is not layers[-1]:
            exits = decide(number, hidden, exits)
        if layer is layers[-1] and (norm := adapter.final_norm(decoder)) is not None:
            hidden = norm(hidden)
        yield hidden


def _layer_function(layer: Any) -> Callable[..., Tensor]:
    """Return `_apply_layer`, wrapped as the Hugging Face layer says if gradient checkpointing is on."""
    if not (layer.training and getattr(layer, "gradient_checkpointing", False)):
        return _apply_layer

    def checkpointed(*arguments: Any) -> Tensor:
        states: Tensor = layer._gradient_checkpointing_func(_apply_layer, *arguments)
        return states

    return checkpointed


def _apply_layer(decoder_block: DecoderBlock, hidden: Tensor, step: _Step, updates: Updates | None) -> Tensor:
    """Run one layer on new positions. hidden: (batch, length, width), as the result."""
    batch, terms = step.batch, step.terms
    block = decoder_block.block
    part, dropout = block.attention, block.dropout if block.training else Dropout()
    states = hidden.flatten(0, 1)
    # Frozen positions keep being read, so keys, and in pre-norm models the norm before them, are for all.
    normed = block.attention_norm(states) if block.pre_norm else states
    keys = _new_keys(decoder_block, normed, step)
    if updates is None:
        return hidden
    chosen = updates.positions
    query = part.projections.queries(_rows(normed, chosen))
    if terms.rotary is not None:
        angles = (_rows(terms.rotary[0], chosen), _rows(terms.rotary[1], chosen))
        query = PositionTerms(rotary=angles).rotate(query, part.heads)
    context = _attend(query, keys, updates, part, dropout.scores)
    attended = drop(project(part.output, context), dropout.attention_output) + _rows(states, chosen)
    if not block.pre_norm:
        attended = block.attention_norm(attended)
    if decoder_block.cross_attention is not None and batch.source is not None:
        attended = _attend_to_source(decoder_block, attended, batch, updates, dropout)
    updated = feed_forward(block, dropout, attended)
    if chosen is None:
        return updated.view_as(hidden)
    return states.index_copy(0, chosen, updated.to(states.dtype)).view_as(hidden)


def _new_keys(block: DecoderBlock, normed: Tensor, step: _Step) -> _Keys:
    """Project new positions to keys and values, add them to the cache, and return all there are by now."""
    batch, shape = step.batch, step.batch.input_ids.shape
    key, value = block.block.attention.projections.keys_and_values(normed)
    key = step.terms.rotate(key, block.block.attention.shared_heads)
    key, value = (_by_head(rows, shape, block.block.attention.shared_heads) for rows in (key, value))
    if batch.cache is not None:
        cache = batch.cache.self_attention_cache if isinstance(batch.cache, EncoderDecoderCache) else batch.cache
        key, value = cache.update(key, value, block.block.layer - 1)
    return _Keys(key, value, _visible(batch, key.shape[2], step.past))


def _visible(batch: DecoderBatch, tokens: int, past: int) -> Tensor | None:
    """Return who may attend to whom: (batch or 1, length, tokens), or None if everybody may attend to all.

    tokens: keys, which in a cache of fixed size include places that are not filled yet.
    """
    if batch.visible is not None:
        return batch.visible
    length = batch.input_ids.shape[1]
    if length == 1 and batch.mask is None and tokens == past + 1:
        return None
    device = batch.input_ids.device
    columns, now = torch.arange(tokens, device=device), torch.arange(past, past + length, device=device)
    visible = (columns <= now[:, None])[None]
    if batch.mask is None:
        return visible
    return visible & F.pad(batch.mask, (0, tokens - batch.mask.shape[1]))[:, None]


def _attend_to_source(
    decoder_block: DecoderBlock, attended: Tensor, batch: DecoderBatch, updates: Updates, dropout: Dropout
) -> Tensor:
    """Let active positions attend to the states of the encoder. attended: (active, width). Returns (active, width)."""
    part, norm = decoder_block.cross_attention, decoder_block.cross_attention_norm
    pre_norm = decoder_block.block.pre_norm
    assert part is not None and norm is not None and batch.source is not None
    query = part.projections.queries(norm(attended) if pre_norm else attended)
    key, value = _source_keys(decoder_block, batch.source, batch.cache)
    visible = None if batch.source_mask is None else batch.source_mask[:, None]
    context = _attend(query, _Keys(key, value, visible), updates, part, dropout.scores)
    attended = drop(project(part.output, context), dropout.attention_output) + attended
    return attended if pre_norm else norm(attended)


def _source_keys(block: DecoderBlock, source: Tensor, cache: Cache | None) -> tuple[Tensor, Tensor]:
    """Return the keys and values of the source, which are projected when a layer first has an active position."""
    part, number = block.cross_attention, block.block.layer - 1
    assert part is not None
    kept = cache if isinstance(cache, EncoderDecoderCache) else None
    if kept is not None and kept.is_updated.get(number):
        layer: Any = kept.cross_attention_cache.layers[number]
        return layer.keys, layer.values
    projected = part.projections.keys_and_values(source.flatten(0, 1))
    key, value = (_by_head(rows, source.shape[:2], part.heads) for rows in projected)
    if kept is not None:
        key, value = kept.cross_attention_cache.update(key, value, number)
        kept.is_updated[number] = True
    return key, value


def _attend(query: Tensor, keys: _Keys, updates: Updates, part: AttentionPart, dropout: float) -> Tensor:
    """Let active positions attend to keys. query: (active, attention width). Returns the same shape."""
    heads = part.heads
    slots = updates.occupied.shape
    if updates.positions is not None and slots[1] > 1:
        laid_out = query.new_zeros(*slots, query.shape[1])
        query = laid_out.masked_scatter(updates.occupied[..., None], query).flatten(0, 1)
    key, value, visible = keys.key, keys.value, keys.visible
    if updates.rows is not None:
        key, value = key.index_select(0, updates.rows), value.index_select(0, updates.rows)
        visible = visible if visible is None or len(visible) == 1 else visible.index_select(0, updates.rows)
    if visible is not None and visible.shape[1] > 1:
        # Rows of the mask follow the slots: the active columns of each row of the batch.
        visible = visible.expand(len(updates.columns), -1, -1)
        visible = visible.gather(1, updates.columns[..., None].expand(-1, -1, visible.shape[2]))
    if visible is not None and not bool(updates.occupied.all()):
        # Nobody reads what an empty slot gives, but it must not be NaN.
        visible = visible | ~updates.occupied[..., None]
    if key.shape[1] != heads:
        key, value = (tensor.repeat_interleave(heads // tensor.shape[1], dim=1) for tensor in (key, value))
    context = F.scaled_dot_product_attention(
        _by_head(query, slots, heads),
        key,
        value,
        attn_mask=None if visible is None else visible[:, None],
        dropout_p=dropout,
        scale=part.scale,
    )
    rows = context.transpose(1, 2).flatten(2)
    return rows.flatten(0, 1) if updates.positions is None else rows[updates.occupied]


def _by_head(rows: Tensor, shape: Any, heads: int) -> Tensor:
    """View (batch * length, width) rows as (batch, heads, length, head width)."""
    return rows.view(*shape, heads, -1).transpose(1, 2)


def _rows(states: Tensor, chosen: Tensor | None) -> Tensor:
    return states if chosen is None else states.index_select(0, chosen)
