"""Everything that is cached from weights follows their changes, however they are made."""

import copy
import gc
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForSequenceClassification

from architectures import FAMILIES, converted, encoder_of, make_exits, make_ids, make_model, randomise
from hashee.engine.reference import run_reference
from hashee.families.adapters import ADAPTERS

LOOKED_UP = [family for family in FAMILIES if ADAPTERS[family].summed_embeddings is not None]
EXITS = make_exits("exits at 0")
TOLERANCE = 1e-5


def error_after(write: Callable[[Any], None], family: str = "bert", shared: bool = False, **changes: Any) -> float:
    """Return how far a converted model that has run once is from the reference after its weights changed."""
    if family == "electra":
        changes |= {"embedding_size": 24}  # no projection between the embeddings and the layers
    dense = make_model(family, **changes)
    if shared:
        dense.share_memory()
    model = converted(dense, EXITS)
    ids = make_ids()
    with torch.no_grad():
        before = model(ids).last_hidden_state
        assert encoder_of(model).first_layer_cache.lookup is not None, "nothing was cached that could be stale"
        write(dense)
        theirs = run_reference(dense, EXITS, input_ids=ids).last_hidden_state
        assert (theirs - before).abs().max() > 1e-3, "the weights must have changed"
        return float((model(ids).last_hidden_state - theirs).abs().max())


@pytest.mark.parametrize("family", LOOKED_UP)
def test_writes_through_data(family: str) -> None:
    def halve(model: Any) -> None:
        for parameter in model.parameters():
            parameter.data.mul_(0.5)

    assert error_after(halve, family) <= TOLERANCE


@pytest.mark.parametrize("in_place", [True, False])
def test_averaged_weights_swapped_in(in_place: bool) -> None:
    def swap(model: Any) -> None:
        average = randomise(copy.deepcopy(model))
        for parameter, other in zip(model.parameters(), average.parameters(), strict=True):
            if in_place:
                parameter.data.copy_(other.data)
            else:
                parameter.data = other.data

    assert error_after(swap) <= TOLERANCE


@pytest.mark.parametrize(
    "name",
    [
        "embeddings.position_embeddings.weight",
        "embeddings.token_type_embeddings.weight",
        "embeddings.LayerNorm.weight",
        "encoder.layer.0.attention.self.query.weight",
        "encoder.layer.0.attention.self.key.weight",
        "encoder.layer.0.attention.self.value.bias",
    ],
)
def test_one_entry_written_through_a_numpy_view(name: str) -> None:
    def write(model: Any) -> None:
        view = model.get_parameter(name).detach().numpy()
        view.reshape(-1)[3] += 2.0

    assert error_after(write) <= TOLERANCE


def test_one_word_written_through_data() -> None:
    def write(model: Any) -> None:
        model.embeddings.word_embeddings.weight.data[make_ids()[0, 3], 5] += 2.0

    assert error_after(write) <= TOLERANCE


def test_a_permutation_of_heads_is_a_change() -> None:
    # Sums over a weight would not see it.
    def write(model: Any) -> None:
        attention = model.encoder.layer[0].attention.self
        attention.value.weight.data.copy_(attention.value.weight.data.roll(8, 0).clone())

    assert error_after(write) <= TOLERANCE


def test_shared_memory_written_by_another_process() -> None:
    def write(model: Any) -> None:
        writer = torch.multiprocessing.get_context("spawn").Process(target=_double, args=(model.embeddings,))
        writer.start()
        writer.join()
        assert writer.exitcode == 0

    assert error_after(write, shared=True) <= TOLERANCE


def _double(embeddings: nn.Module) -> None:
    for parameter in embeddings.parameters():
        parameter.data.mul_(2)


@pytest.mark.parametrize("merged_while", ["before any prediction", "after a prediction"])
def test_merged_adapters(merged_while: str) -> None:
    peft = pytest.importorskip("peft")
    dense = make_model("bert", AutoModelForSequenceClassification)
    model = converted(dense, EXITS)
    ids = make_ids()
    wrapped = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["query", "key", "value", "dense"]))
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if "lora_" in name:
                parameter.normal_(0, 0.5)
        expected = wrapped.eval()(ids).logits
        if merged_while == "after a prediction":
            wrapped.base_model.disable_adapter_layers()
            wrapped(ids)  # runs from the cache
            wrapped.base_model.enable_adapter_layers()
        merged = wrapped.merge_and_unload().eval()
        # Merging writes to the weights in place, through `.data`.
        assert (merged(ids).logits - expected).abs().max() <= 1e-4
        again = peft.get_peft_model(merged, peft.LoraConfig(r=4, target_modules=["query"], init_lora_weights=False))
        expected = again.eval()(ids).logits
        assert (again.merge_and_unload().eval()(ids).logits - expected).abs().max() <= 1e-4


@pytest.mark.parametrize("fused", [True, False])
def test_steps_of_optimizers(fused: bool) -> None:
    dense = make_model("bert")
    model = converted(dense, EXITS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=fused)
    for seed in range(3):
        model(make_ids(seed=seed)).last_hidden_state.square().sum().backward()
        with torch.no_grad():
            model(make_ids())
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            theirs = run_reference(dense, EXITS, input_ids=make_ids()).last_hidden_state
            assert (model(make_ids()).last_hidden_state - theirs).abs().max() <= TOLERANCE


def test_importing_hooks_nothing_into_optimizers() -> None:
    script = """
import torch, hashee, hashee.hf.classes
from torch.optim import optimizer
assert not optimizer._global_optimizer_post_hooks and not optimizer._global_optimizer_pre_hooks
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_cache_belongs_to_the_encoder() -> None:
    model = converted(make_model("bert"), EXITS)
    with torch.no_grad():
        model(make_ids())
        lookup = model.first_layer_cache.lookup
        assert lookup is not None
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert other.first_layer_cache.lookup is None
            assert torch.equal(other(make_ids()).last_hidden_state, model(make_ids()).last_hidden_state)
        assert model.first_layer_cache.lookup is lookup, "nothing changed, so nothing is rebuilt"
        model.train()
    assert model.first_layer_cache.lookup is None
    table = lookup.rows.table
    del lookup, model, other
    gc.collect()
    holders = [holder for holder in gc.get_referrers(table) if holder is not globals() and not isinstance(holder, type)]
    assert not [holder for holder in holders if type(holder).__name__ == "_Rows"], "the table outlives its encoder"
