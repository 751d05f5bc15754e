"""Backbones that the tests of fitting share."""

import gc
from pathlib import Path

import pytest
from fitting_data import make_backbone


@pytest.fixture(scope="session")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT with dropout."""
    return make_backbone(tmp_path_factory.mktemp("backbone"))


@pytest.fixture(scope="session")
def plain_backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT without dropout, which computes the same however its batches are cut."""
    changes = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return make_backbone(tmp_path_factory.mktemp("plain"), **changes)


@pytest.fixture(scope="session", autouse=True)
def _what_was_imported_stays() -> None:
    """Every training begins with a collection of garbage, which need not look at the modules again and again."""
    from hashee.training import outcome, search  # noqa: F401

    gc.collect()
    gc.freeze()
