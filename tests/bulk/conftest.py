"""One model and one file of rows for all tests of bulk jobs."""

from pathlib import Path

import pytest
from jobs import make_classifier, make_texts, write_rows


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a converted classifier."""
    folder = tmp_path_factory.mktemp("bulk") / "model"
    make_classifier(folder)
    return folder


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of 300 lines of JSON, some of which cannot be read."""
    return write_rows(tmp_path_factory.mktemp("rows") / "rows.jsonl", make_texts(300))
