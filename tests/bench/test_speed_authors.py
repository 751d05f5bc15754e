"""The published algorithm, as a baseline, gives the right outputs, and its operations are counted as it runs them."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from architectures import VOCABULARY, make_exits, make_ids, make_mask, make_model, padded
from hashee.bench.baselines.authors import encode
from hashee.bench.batches import TokenizedTexts
from hashee.bench.cost import COSTS, Work
from hashee.engine.reference import run_reference
from hashee.tables.table import ExitTable


@pytest.mark.parametrize("kind", ["full depth", "exits at random", "exits at 0"])
def test_authors_algorithm_equals_the_reference(kind: str) -> None:
    model = make_model("bert")
    mask = make_mask("right")
    ids = padded(make_ids(), mask, model.config)
    types = torch.randint(0, 2, ids.shape, generator=torch.Generator().manual_seed(3))
    exits = make_exits(kind)
    with torch.inference_mode():
        expected = run_reference(model, exits, input_ids=ids, attention_mask=mask, token_type_ids=types)
        found = encode(model, exits, ids, mask, types)
    real = mask.bool()
    assert (found[real] - expected.last_hidden_state[real]).abs().max() <= 1e-5


def test_authors_algorithm_notices_a_lost_mask() -> None:
    model = make_model("bert")
    mask = make_mask("right")
    ids = padded(make_ids(), mask, model.config)
    exits = make_exits("exits at random")
    with torch.inference_mode():
        right, wrong = encode(model, exits, ids, mask), encode(model, exits, ids, torch.ones_like(mask))
    assert (right[mask.bool()] - wrong[mask.bool()]).abs().max() > 1e-2


def work_of_mixed_lengths(exits: torch.Tensor, layers: int) -> tuple[Work, torch.Tensor, torch.Tensor]:
    model = make_model("bert")
    mask = make_mask("right")
    ids = padded(make_ids(), mask, model.config)
    rows = tuple(tuple(row[keep.bool()].tolist()) for row, keep in zip(ids, mask, strict=True))
    tokens = TokenizedTexts(rows, tuple((0,) * len(row) for row in rows))
    table = ExitTable.from_tensor(exits, num_layers=layers)
    return Work(model.config, layers, tokens, [list(range(len(rows)))], table), ids, mask


@pytest.mark.parametrize("kind", ["full depth", "exits at random"])
def test_counted_operations_are_those_that_run(kind: str) -> None:
    exits = make_exits(kind)
    work, ids, mask = work_of_mixed_lengths(exits, 4)
    model = make_model("bert")
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        encode(model, exits, ids, mask)
    counted = COSTS["authors"](work)
    # torch sees matrix products only; norms and softmax are the small rest.
    assert counter.get_total_flops() <= 2 * counted <= 1.25 * counter.get_total_flops()


def test_costs_are_ordered_as_the_work_is() -> None:
    work, _, _ = work_of_mixed_lengths(make_exits("exits at random"), 4)
    costs = {name: count(work) for name, count in COSTS.items()}
    assert costs["packed"] < costs["authors"] < costs["padded"]
    assert costs["packed"] < costs["packed full depth"] < costs["padded"]
    assert costs["padded training"] == 3 * costs["padded"]
    assert len(work.table.exit_layers) == VOCABULARY


def test_padded_batches_cost_what_transformers_runs() -> None:
    work, ids, mask = work_of_mixed_lengths(make_exits("full depth"), 4)
    model = make_model("bert")
    with torch.inference_mode(), FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model(ids, attention_mask=mask)
    pooler = 5 * 24 * 24
    # What torch does not count, in 4 layers: softmax over 5 x 12 x 12 pairs, twice, in 3 heads; two norms of 60 tokens.
    softmax, norms = 4 * 5 * 12 * 12 * 2 * 3, 4 * 60 * 2 * 2 * 24
    assert COSTS["padded"](work) == counter.get_total_flops() // 2 - pooler + softmax + norms
