"""The first layer's projections are looked up: same states, never from stale rows, within the memory limit."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from architectures import FAMILIES, converted, encoder_of, make_exits, make_ids, make_mask, make_model, padded
from hashee.engine import first_layer
from hashee.engine.reference import run_reference
from hashee.families.adapters import ADAPTERS, adapter_for

LOOKED_UP = [family for family in FAMILIES if ADAPTERS[family].summed_embeddings is not None]
TOLERANCE = 1e-5


def small_encoder(family: str, **changes: Any) -> tuple[Any, Any]:
    """Return an encoder with exits, and the dense one that shares its parameters."""
    if family == "electra":
        changes |= {"embedding_size": 24}  # no projection between the embeddings and the layers
    model = make_model(family, **changes)
    return encoder_of(converted(model, make_exits("exits at 0"))), encoder_of(model)


def states(encoder: Any, **inputs: Tensor) -> Tensor:
    with torch.no_grad():
        return encoder(**inputs).last_hidden_state


def same_as_reference(encoder: Any, dense: Any, seed: int = 0) -> bool:
    ids, mask = make_ids(seed=seed), make_mask("mixed lengths")
    inputs: dict[str, Any] = {"input_ids": padded(ids, mask, dense.config), "attention_mask": mask}
    if adapter_for(dense.config).token_types and getattr(dense.config, "type_vocab_size", 1) > 1:
        inputs["token_type_ids"] = (torch.arange(12) > 6).long().expand(5, 12)
    theirs = run_reference(dense, make_exits("exits at 0"), **inputs).last_hidden_state
    return bool((states(encoder, **inputs) - theirs)[mask.bool()].abs().max() <= TOLERANCE)


@pytest.mark.parametrize("family", LOOKED_UP)
def test_looked_up_states_equal_the_reference(family: str) -> None:
    encoder, dense = small_encoder(family)
    assert encoder.adapter.shape(encoder.config).looked_up
    for seed in (0, 1, 0):
        assert same_as_reference(encoder, dense, seed)
    assert encoder.first_layer_cache.lookup is not None


def test_a_type_is_projected_once() -> None:
    encoder, _ = small_encoder("bert")
    ids = make_ids(seed=3)
    states(encoder, input_ids=ids)
    rows = encoder.first_layer_cache.lookup.rows
    assert rows.used == len(ids.unique())
    states(encoder, input_ids=ids.flip(0))
    assert encoder.first_layer_cache.lookup.rows is rows
    assert rows.used == len(ids.unique())


@pytest.mark.parametrize(
    "name",
    [
        "embeddings.word_embeddings.weight",
        "embeddings.position_embeddings.weight",
        "embeddings.token_type_embeddings.weight",
        "embeddings.LayerNorm.weight",
        "embeddings.LayerNorm.bias",
        "encoder.layer.0.attention.self.query.weight",
        "encoder.layer.0.attention.self.value.bias",
    ],
)
def test_changed_weights_never_use_old_rows(name: str) -> None:
    encoder, dense = small_encoder("bert")
    assert same_as_reference(encoder, dense)
    with torch.no_grad():
        dense.get_parameter(name).mul_(1.5)
    assert same_as_reference(encoder, dense)


def test_a_full_table_is_replaced_and_one_that_is_too_small_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    row_bytes = 3 * 24 * 4
    monkeypatch.setattr(first_layer, "MEMORY", 60 * row_bytes)
    encoder, dense = small_encoder("bert")
    tables = set()
    for seed in range(6):
        assert same_as_reference(encoder, dense, seed)
        rows = encoder.first_layer_cache.lookup.rows
        assert rows.used <= 60
        tables.add(id(rows.table))
    assert len(tables) > 1
    monkeypatch.setattr(first_layer, "MEMORY", 4 * row_bytes)
    encoder, dense = small_encoder("bert")
    assert same_as_reference(encoder, dense)
    assert encoder.first_layer_cache.lookup.rows.used == 0


def test_threads_share_a_table_that_keeps_filling_up(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, _ = small_encoder("bert")
    batches = [make_ids(seed=seed) for seed in range(60)]
    expected = [states(encoder, input_ids=ids) for ids in batches]
    monkeypatch.setattr(first_layer, "MEMORY", 60 * 3 * 24 * 4)
    encoder.first_layer_cache.clear()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda ids: states(encoder, input_ids=ids), batches))
    assert all(torch.allclose(*pair, atol=TOLERANCE) for pair in zip(found, expected, strict=True))


def test_other_embeddings_are_not_looked_up() -> None:
    encoder, dense = small_encoder("bert")
    for part in (encoder, dense):  # they share parameters, not modules
        part.embeddings.LayerNorm.register_forward_hook(lambda module, inputs, output: output * 2)
    assert same_as_reference(encoder, dense)
    encoder, dense = small_encoder("bert")
    with torch.no_grad():
        encoder.train()
        encoder(make_ids())
        encoder.eval()
        encoder(make_ids(), inputs_embeds=torch.randn(5, 12, 24))
    assert encoder.first_layer_cache.lookup is None


@pytest.mark.parametrize("fused", [True, False])
def test_weights_changed_by_an_optimizer_never_use_old_rows(fused: bool) -> None:
    encoder, dense = small_encoder("bert")
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=0.1, fused=fused)
    for seed in range(3):
        # Few rows: their products run on weights that are laid out anew and kept.
        assert same_as_reference(encoder, dense, seed)
        encoder(input_ids=make_ids(seed=seed)).last_hidden_state.square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert same_as_reference(encoder, dense)
