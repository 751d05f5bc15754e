"""What must hold for any batch: a sequence's output depends on that sequence alone."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from architectures import LAYERS, VOCABULARY, converted, make_exits, make_model
from hashee.engine.plan import make_plan, split_by_size

TOLERANCE = 1e-5
sequences = st.lists(
    st.lists(st.integers(min_value=5, max_value=VOCABULARY - 1), min_size=1, max_size=14), min_size=1, max_size=6
)
MODELS = {
    family: converted(make_model(family), make_exits("exits at 0"))
    for family in ("bert", "mpnet", "roberta-prelayernorm")
}


def pad(rows: list[list[int]], extra: int = 0, left: bool = False) -> tuple[Tensor, Tensor]:
    """Pad id lists to one length, plus `extra` columns, and return ids and mask."""
    length = max(map(len, rows)) + extra
    ids, mask = torch.ones(len(rows), length, dtype=torch.long), torch.zeros(len(rows), length, dtype=torch.long)
    for number, row in enumerate(rows):
        columns = slice(length - len(row), length) if left else slice(0, len(row))
        ids[number, columns], mask[number, columns] = torch.tensor(row), 1
    return ids, mask


def encode(family: str, rows: list[list[int]], extra: int = 0, left: bool = False) -> list[Tensor]:
    """Return the states of each sequence's own tokens."""
    ids, mask = pad(rows, extra, left)
    # BERT counts positions over padding; give every sequence its own count, as the padding-free text would have.
    offset = 0 if family == "bert" else 2
    positions = (mask.cumsum(1) - 1).clamp(min=0) + offset
    with torch.inference_mode():
        states = MODELS[family](ids, attention_mask=mask, position_ids=positions).last_hidden_state
    return [states[number][mask[number].bool()] for number in range(len(rows))]


def assert_same(first: list[Tensor], second: list[Tensor]) -> None:
    for one, other in zip(first, second, strict=True):
        assert (one - other).abs().max() <= TOLERANCE


@settings(max_examples=60, deadline=None)
@given(rows=sequences, family=st.sampled_from(sorted(MODELS)))
def test_neighbours_do_not_matter(rows: list[list[int]], family: str) -> None:
    assert_same(encode(family, rows), [encode(family, [row])[0] for row in rows])


@settings(max_examples=60, deadline=None)
@given(rows=sequences, family=st.sampled_from(sorted(MODELS)), data=st.data())
def test_order_does_not_matter(rows: list[list[int]], family: str, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(rows))))
    shuffled = encode(family, [rows[number] for number in order])
    assert_same([encode(family, rows)[number] for number in order], shuffled)


@settings(max_examples=60, deadline=None)
@given(rows=sequences, family=st.sampled_from(sorted(MODELS)), extra=st.integers(0, 9), left=st.booleans())
def test_padding_does_not_matter(rows: list[list[int]], family: str, extra: int, left: bool) -> None:
    assert_same(encode(family, rows), encode(family, rows, extra, left))


@settings(max_examples=100, deadline=None)
@given(
    rows=st.lists(
        st.lists(st.tuples(st.integers(0, LAYERS), st.booleans()), min_size=7, max_size=7), min_size=1, max_size=5
    )
)
def test_plan_is_a_permutation_of_the_real_tokens(rows: list[list[tuple[int, bool]]]) -> None:
    exits = torch.tensor([[exit_layer for exit_layer, _ in row] for row in rows])
    mask = torch.tensor([[real for _, real in row] for row in rows])
    plan = make_plan(exits, mask, LAYERS)
    assert sorted(plan.rows.tolist()) == mask.flatten().nonzero().squeeze(1).tolist()
    packed = plan.pack(exits)
    for layer in range(LAYERS + 1):
        active = plan.active[layer]
        assert (packed[:active] >= layer).all() and (packed[active:] < layer).all()
        per_sequence = ((exits >= layer) & mask).sum(1)[mask.any(1)]
        assert sorted(plan.active_by_sequence[layer]) == sorted(per_sequence.tolist())
    # Packing and unpacking return the real tokens at their positions, and zero elsewhere.
    assert torch.equal(plan.unpack(packed), exits * mask)
    # Every token sits once, with the other tokens of its own sequence.
    assert sorted(plan.slots[plan.occupied].tolist()) == list(range(plan.tokens))
    for slots, occupied in zip(plan.slots, plan.occupied, strict=True):
        assert len(set((plan.rows[slots[occupied]] // plan.length).tolist())) == 1
    # `slot_of_row` leads from the query slots back to the row of every active token.
    for layer in range(1, LAYERS + 1):
        step = plan.layer(layer) if plan.active[layer] else None
        if step is not None:
            slots = torch.cat([group.query_slots.flatten() for group in step.groups])
            assert torch.equal(slots[step.slot_of_row], torch.arange(step.active))


@given(
    sizes=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 20)), max_size=40),
    max_slots=st.none() | st.integers(1, 400),
)
def test_groups_are_neighbours_and_cover_every_sequence(sizes: list[tuple[int, int]], max_slots: int | None) -> None:
    lengths = [length for length, _ in sizes]
    groups = split_by_size(lengths, [queries for _, queries in sizes], max_slots=max_slots)
    assert [index for first, last in groups for index in range(first, last)] == list(range(len(sizes)))
    if max_slots is not None:
        assert all(
            last - first == 1 or (last - first) * max(lengths[first:last]) <= max_slots for first, last in groups
        )
