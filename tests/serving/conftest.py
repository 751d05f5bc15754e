"""One server of three tiny models, for most tests of serving."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

from running import PATIENCE_MS, QUEUE, Server, save_classifier, save_embedder, save_reranker


@pytest.fixture(scope="session")
def folders(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of an embedder, a classifier and a reranker."""
    root = tmp_path_factory.mktemp("models")
    return {
        "embedder": save_embedder(tokenizer, root / "embedder"),
        "classifier": save_classifier(tokenizer, root / "classifier"),
        "reranker": save_reranker(tokenizer, root / "reranker"),
    }


@pytest.fixture(scope="session")
def server(folders: dict[str, Path]) -> Iterator[Server]:
    """A server of all three, which needs a token and takes a short queue."""
    with Server(
        *folders.values(), "--max-queue-macs", QUEUE, "--deadline-ms", PATIENCE_MS, token="correct horse"
    ) as running:
        yield running
