"""Which layers are exit layer 1, 2, 3, ...: written down by hand, so that engine and reference cannot err together."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Module

from architectures import (
    FAMILIES,
    LAYERS,
    VOCABULARY,
    converted,
    encoder_of,
    make_exits,
    make_ids,
    make_model,
)
from hashee.engine.adapter import Adapter
from hashee.engine.reference import run_reference
from hashee.errors import UnsupportedModel
from hashee.families import FAMILIES as REGISTERED
from hashee.families.adapters import ADAPTERS

TOLERANCE = 1e-5
BERT_LIKE = [["encoder.layer.0"], ["encoder.layer.1"], ["encoder.layer.2"], ["encoder.layer.3"]]
BART_LIKE = [["layers.0"], ["layers.1"], ["layers.2"], ["layers.3"]]
GROUP = "encoder.albert_layer_groups"

EXIT_LAYERS: dict[str, list[list[str]]] = {
    # Four layers in two groups of two: layers 1 and 2 are group 0, layers 3 and 4 are group 1.
    "albert": [
        [f"{GROUP}.0.albert_layers.0", f"{GROUP}.0.albert_layers.1"],
        [f"{GROUP}.0.albert_layers.0", f"{GROUP}.0.albert_layers.1"],
        [f"{GROUP}.1.albert_layers.0", f"{GROUP}.1.albert_layers.1"],
        [f"{GROUP}.1.albert_layers.0", f"{GROUP}.1.albert_layers.1"],
    ],
    "bart": BART_LIKE,
    "bert": BERT_LIKE,
    "camembert": BERT_LIKE,
    "cpt": BERT_LIKE,
    "deberta-v2": BERT_LIKE,
    "distilbert": [["transformer.layer.0"], ["transformer.layer.1"], ["transformer.layer.2"], ["transformer.layer.3"]],
    "elasticbert": BERT_LIKE,
    "electra": BERT_LIKE,
    "encoder-bart": BERT_LIKE,
    "eurobert": BART_LIKE,
    "gte": BART_LIKE,
    "marian": BART_LIKE,
    "mbart": BART_LIKE,
    "modernbert": BART_LIKE,
    "mpnet": BERT_LIKE,
    "nomic_bert": BART_LIKE,
    "roberta": BERT_LIKE,
    "roberta-prelayernorm": BERT_LIKE,
    "t5": [["block.0"], ["block.1"], ["block.2"], ["block.3"]],
    "xlm-roberta": BERT_LIKE,
}
"""For each family the modules of the encoder that run as exit layers 1 to 4, in the order in which they run."""

ALBERTS: dict[tuple[int, int], list[list[str]]] = {
    (1, 1): [[f"{GROUP}.0.albert_layers.0"]] * 4,
    (1, 3): [[f"{GROUP}.0.albert_layers.0", f"{GROUP}.0.albert_layers.1", f"{GROUP}.0.albert_layers.2"]] * 4,
    # Four layers are dealt out to three groups as 2, 1, 1.
    (3, 1): [
        [f"{GROUP}.0.albert_layers.0"],
        [f"{GROUP}.0.albert_layers.0"],
        [f"{GROUP}.1.albert_layers.0"],
        [f"{GROUP}.2.albert_layers.0"],
    ],
    (4, 2): [
        [f"{GROUP}.0.albert_layers.0", f"{GROUP}.0.albert_layers.1"],
        [f"{GROUP}.1.albert_layers.0", f"{GROUP}.1.albert_layers.1"],
        [f"{GROUP}.2.albert_layers.0", f"{GROUP}.2.albert_layers.1"],
        [f"{GROUP}.3.albert_layers.0", f"{GROUP}.3.albert_layers.1"],
    ],
}
"""The same for ALBERTs with other numbers of groups, and of layers in each group."""

Case = tuple[str, dict[str, int], list[list[str]]]
CASES: list[Case] = [(family, {}, table) for family, table in EXIT_LAYERS.items() if family in FAMILIES]
CASES += [("albert", {"num_hidden_groups": n, "inner_group_num": m}, table) for (n, m), table in ALBERTS.items()]
each_case = pytest.mark.parametrize(
    "case", CASES, ids=[" ".join([family, *map(str, changes.values())]) for family, changes, _ in CASES]
)


def test_every_family_is_written_down() -> None:
    assert set(EXIT_LAYERS) == {family.model_type for family in REGISTERED if family.adapter is not None}


@contextmanager
def outputs_of(encoder: Any, names: set[str]) -> Iterator[list[tuple[str, Tensor]]]:
    """Give a list that gets the name and the states of each of these modules whenever it has run."""
    seen: list[tuple[str, Tensor]] = []

    def hook_of(name: str) -> Any:
        def keep(module: Module, inputs: Any, output: Any) -> None:
            seen.append((name, output[0] if isinstance(output, tuple) else output))

        return keep

    handles = [encoder.get_submodule(name).register_forward_hook(hook_of(name)) for name in sorted(names)]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


@each_case
def test_hugging_face_runs_these_layers_in_this_order(case: Case) -> None:
    family, changes, table = case
    encoder = encoder_of(make_model(family, **changes))
    layers = {name for names in table for name in names}
    with outputs_of(encoder, layers) as seen, torch.no_grad():
        encoder(make_ids())
    assert [name for name, _ in seen] == [name for names in table for name in names]
    # The table forgets no layer: there is no other module of the same class.
    kinds = {type(encoder.get_submodule(name)) for name in layers}
    assert {name for name, module in encoder.named_modules() if type(module) in kinds} == layers


def numbered(adapter: Adapter, encoder: Any) -> list[list[str]]:
    """Return the names of an adapter's layers by the exit layer that it gives them."""
    names = {module: name for name, module in encoder.named_modules()}
    table: dict[int, list[str]] = {}
    for index, layer in enumerate(adapter.layers(encoder)):
        table.setdefault(adapter.exit_layer(encoder, index), []).append(names[layer])
    assert list(table) == list(range(1, len(table) + 1))
    return list(table.values())


@each_case
def test_adapters_number_them_so(case: Case) -> None:
    family, changes, table = case
    model = make_model(family, **changes)
    assert numbered(ADAPTERS[family], encoder_of(model)) == table
    # The first layers keep their numbers, and their weights, when the others are cut off.
    half = encoder_of(converted(model, make_exits("random exits", layers=2), layers=2))
    assert numbered(ADAPTERS[family], half) == table[:2]


@each_case
@pytest.mark.parametrize("last", range(LAYERS + 1))
def test_the_reference_freezes_after_them(case: Case, last: int) -> None:
    # With all tokens frozen after a layer, the states that leave the encoder's last layer are those of that layer.
    family, changes, table = case
    encoder = encoder_of(make_model(family, **changes))
    layers = {name for names in table for name in names}
    with torch.no_grad():
        with outputs_of(encoder, layers) as dense:
            first = encoder(make_ids(), output_hidden_states=True).hidden_states[0]
        with outputs_of(encoder, layers) as frozen:
            run_reference(encoder, torch.full((VOCABULARY,), last), input_ids=make_ids())
    run_before = sum(len(names) for names in table[:last])
    expected = dense[run_before - 1][1] if run_before else first
    assert torch.equal(frozen[-1][1], expected)


def test_a_family_that_the_reference_does_not_know_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="does not know where Linear has its layers"):
        run_reference(torch.nn.Linear(2, 2), torch.ones(3), input_ids=torch.ones(1, 1).long())  # type: ignore[arg-type]


# --- a wrong adapter cannot hide ---


def parity(family: str, changes: dict[str, int]) -> float:
    """Return how far the engine is from the reference, in inference and with gradients."""
    model, exits, ids = make_model(family, **changes), make_exits("random exits"), make_ids()
    encoder = encoder_of(converted(model, exits))
    theirs = run_reference(encoder_of(model), exits, input_ids=ids).last_hidden_state
    ours = encoder(ids).last_hidden_state
    with torch.inference_mode():
        fast = encoder(ids).last_hidden_state
    return float(torch.stack([(states - theirs).detach().abs().max() for states in (ours, fast)]).max())


def numbers(adapter: Adapter, wrong: Callable[[int, int], int]) -> dict[str, Callable[..., Any]]:
    """Change the exit layers of all layers but the last, which tells how many there are, to `wrong(number, index)`."""
    right, layers = adapter.exit_layer, adapter.layers

    def exit_layer(encoder: Any, index: int) -> int:
        number = right(encoder, index)
        return number if index == len(layers(encoder)) - 1 else wrong(number, index)

    return {"exit_layer": exit_layer}


def one_early(adapter: Adapter) -> dict[str, Callable[..., Any]]:
    return numbers(adapter, lambda number, index: max(1, number - 1))


def one_late(adapter: Adapter) -> dict[str, Callable[..., Any]]:
    return numbers(adapter, lambda number, index: min(LAYERS, number + 1))


def by_index(adapter: Adapter) -> dict[str, Callable[..., Any]]:
    # What every family does whose exit layers are single blocks, and ALBERT would do without an override.
    return numbers(adapter, lambda number, index: min(index + 1, LAYERS))


def reversed_layers(adapter: Adapter) -> dict[str, Callable[..., Any]]:
    right = adapter.layers
    return {"layers": lambda encoder: right(encoder)[::-1]}


def two_swapped(adapter: Adapter) -> dict[str, Callable[..., Any]]:
    right = adapter.layers

    def layers(encoder: Any) -> list[Module]:
        found = right(encoder)
        half = len(found) // 2
        return [*found[: half - 1], found[half], found[half - 1], *found[half + 1 :]]

    return {"layers": layers}


def first_one_only(adapter: Adapter) -> dict[str, Callable[..., Any]]:
    right = adapter.layers
    return {"layers": lambda encoder: right(encoder)[:1] * len(right(encoder))}


MUTANTS = (one_early, one_late, reversed_layers, two_swapped, first_one_only)


@pytest.mark.parametrize("family", FAMILIES)
def test_right_adapters_pass(family: str) -> None:
    assert parity(family, {}) <= TOLERANCE


@pytest.mark.parametrize(
    ("family", "mutate"), [*((family, mutate) for family in FAMILIES for mutate in MUTANTS), ("albert", by_index)]
)
def test_wrong_numbers_and_orders_of_layers_are_caught(
    family: str, mutate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # These encoders are BertModels, which find BERT's adapter.
    for adapter in {ADAPTERS[family], ADAPTERS["bert" if family in ("cpt", "encoder-bart") else family]}:
        for name, wrong in mutate(adapter).items():
            monkeypatch.setattr(adapter, name, wrong, raising=False)
    assert parity(family, {}) > 100 * TOLERANCE


@pytest.mark.parametrize(("groups", "inner"), [(1, 3), (3, 1), (4, 2)])
def test_wrong_numbers_in_other_alberts_are_caught(groups: int, inner: int, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {"num_hidden_groups": groups, "inner_group_num": inner}
    assert parity("albert", changes) <= TOLERANCE
    mutant = numbers(ADAPTERS["albert"], lambda number, index: 1 + index // (inner + 1))
    monkeypatch.setattr(ADAPTERS["albert"], "exit_layer", mutant["exit_layer"])
    assert parity("albert", changes) > 100 * TOLERANCE
