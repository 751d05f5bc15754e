"""Which kernels can run, and which form of attention did, for the tests that must know."""

from typing import Any

import pytest
import torch
from torch import Tensor

import hashee.engine.block
import hashee.hf.model
from architectures import converted, make_exits, make_model
from hashee.engine import native
from hashee.engine.native import variants

needs_kernels = pytest.mark.skipif(native.library() is None, reason="no compiler or no AVX2: everything runs in torch")
ABLE = [variant.name for variant in variants.VARIANTS if variant.missing() is None]
"""The variants of the kernels that this processor can run."""
FUSED = {
    "bart",
    "bert",
    "camembert",
    "cpt",
    "distilbert",
    "elasticbert",
    "electra",
    "encoder-bart",
    "marian",
    "roberta",
    "xlm-roberta",
}
"""Families with unshared post-norm layers and no position bias, which run in one call."""


def recorded_forms(monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, str]]:
    """Return a set that gets the form of every attention that runs after the first layer, and how it is called."""
    ran: set[tuple[str, str]] = set()
    plain, absorbed, in_one_call = hashee.engine.block.attend, hashee.engine.block.attend_absorbed, native.layers_

    def call_plain(*arguments: Any, **options: Any) -> Tensor:
        ran.add(("plain", "one by one"))
        return plain(*arguments, **options)

    def call_absorbed(*arguments: Any, **options: Any) -> Tensor:
        ran.add(("absorbed", "one by one"))
        return absorbed(*arguments, **options)

    def call_all(states: Tensor, layers: Any, *arguments: Any, **options: Any) -> None:
        ran.update({("absorbed" if layer.absorbed else "plain", "in one call") for layer in layers})
        in_one_call(states, layers, *arguments, **options)

    monkeypatch.setattr(hashee.engine.block, "attend", call_plain)
    monkeypatch.setattr(hashee.engine.block, "attend_absorbed", call_absorbed)
    monkeypatch.setattr(native, "layers_", call_all)
    return ran


def recorded_training(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the number of active rows of every layer that trains in kernels."""
    rows: list[int] = []
    train = hashee.engine.block.train_layer

    def recorded(hidden: Tensor, weights: Any, settings: Any) -> Tensor:
        rows.append(settings.active)
        return train(hidden, weights, settings)

    monkeypatch.setattr(hashee.engine.block, "train_layer", recorded)
    return rows


def without_one_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the packed engine run texts on their own too."""
    monkeypatch.setattr(hashee.hf.model, "run_one_text", lambda *_, **__: None)


def wide_model(exits: str = "random exits", seed: int = 0, **changes: Any) -> Any:
    """Return a model whose heads are wide enough for all of our int8 kernels, with weights of an ordinary size."""
    sizes = {"hidden_size": 96, "num_attention_heads": 3, "intermediate_size": 208} | changes
    dense = make_model("bert", seed=seed, **sizes)
    for parameter in dense.parameters():
        parameter.data *= 1 if parameter.ndim == 1 else 0.3
    return converted(dense, make_exits(exits, seed=seed))


def states_of(model: Any, **inputs: Any) -> Tensor:
    """Return the first output of a model in inference."""
    with torch.inference_mode():
        hidden: Tensor = model(**inputs)[0]
    return hidden


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Return the norm of the difference relative to what is expected."""
    return float((found - expected).norm() / expected.norm())
