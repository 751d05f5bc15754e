"""One server of four tiny models, for most tests of serving."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hashee.evaluation.points import TradeoffPoint, write_points

pytest.importorskip("fastapi")

from running import PATIENCE_MS, QUEUE, Server, save_classifier, save_embedder, save_reranker


@pytest.fixture(scope="session")
def folders(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of an embedder, a reranker, and two classifiers that are points of a trade-off."""
    root = tmp_path_factory.mktemp("models")
    found = {
        "embedder": save_embedder(tokenizer, root / "embedder"),
        "reranker": save_reranker(tokenizer, root / "reranker"),
        "classifier": save_classifier(tokenizer, root / "classifier"),
        "classifier-early": save_classifier(tokenizer, root / "classifier-early", min_exit=0, num_buckets=2),
    }
    points = [
        TradeoffPoint(name, "frequency", 4, speedup=speedup, folder=str(found[name]))
        for name, speedup in (("classifier-early", 3.25), ("classifier", 2.0))
    ]
    write_points(points, root / "tradeoff.json")
    return found | {"tradeoff": root}


@pytest.fixture(scope="session")
def server(folders: dict[str, Path]) -> Iterator[Server]:
    """A server of all of them, which needs a token and takes a short queue."""
    models = (folders["embedder"], folders["reranker"], "--tradeoff", folders["tradeoff"])
    limits = ("--max-queue-macs", QUEUE, "--deadline-ms", PATIENCE_MS)
    with Server(*models, *limits, token="correct horse") as running:
        yield running
