"""Backbones that the tests of the study share."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))
from fitting_data import make_backbone


@pytest.fixture(scope="session")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT with dropout and four layers."""
    return make_backbone(tmp_path_factory.mktemp("backbone") / "tiny", layers=4)
