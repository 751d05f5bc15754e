"""Which kernels can run, and which form of attention did, for the tests that must know."""

from typing import Any

import pytest
from torch import Tensor

import hashee.engine.block
from hashee.engine import native

needs_kernels = pytest.mark.skipif(native.library() is None, reason="no compiler or no AVX2: everything runs in torch")
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
