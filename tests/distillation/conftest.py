"""Models that the tests of speed-ups share."""

from pathlib import Path

import pytest

from tiny_text_models import make_folder


@pytest.fixture(scope="session")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny plain encoder."""
    return make_folder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="session")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with one score."""
    return make_folder(tmp_path_factory.mktemp("reranker"), scores=True)
