"""What the tests of serving share: tiny model folders, and a real server in a process of its own."""

from pathlib import Path
from typing import Any

import httpx
import numpy as np
from serving_client import RunningServer
from transformers import AutoModel, AutoModelForSequenceClassification

import hashee
from architectures import make_model

TEXTS = [
    "the film is a quiet masterpiece",
    "dull",
    "the plot is dull and the film is long",
    "a good film , never again",
    "",
    "the cat sat on the mat and the dog sat on the cat",
]
PAIRS = [("a good film", text) for text in TEXTS]
QUEUE = 10_000_000
"""Multiply-accumulates that may wait: some hundred of the texts above."""
PATIENCE_MS = 300_000
"""A busy machine may take minutes to start a process."""
NAMES = {"id2label": {0: "bad", 1: "good", 2: "so-so"}, "label2id": {"bad": 0, "good": 1, "so-so": 2}}


def save_model(
    tokenizer: Any, folder: Path, auto_class: Any, exits: dict[str, int] | None = None, **config: Any
) -> Path:
    """Save a tiny converted model and its tokenizer, and return its folder. exits: options of its table."""
    dense = make_model("bert", auto_class, vocab_size=len(tokenizer), **config)
    options: dict[str, Any] = {"num_layers": 4, "progress": False, **(exits or {})}
    table = hashee.ExitTable.by_frequency(tokenizer, TEXTS, **options)
    hashee.convert(dense, table, tokenizer=tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_embedder(tokenizer: Any, folder: Path) -> Path:
    """Save a tiny encoder without a head."""
    return save_model(tokenizer, folder, AutoModel)


def save_classifier(tokenizer: Any, folder: Path, **exits: int) -> Path:
    """Save a tiny classifier of three labels. exits: options of its table."""
    return save_model(tokenizer, folder, AutoModelForSequenceClassification, exits, **NAMES)


def save_reranker(tokenizer: Any, folder: Path) -> Path:
    """Save a tiny classifier with a single logit."""
    return save_model(tokenizer, folder, AutoModelForSequenceClassification, num_labels=1)


def offline(folder: Path, texts: Any) -> list[Any]:
    """Return what the library gives for texts without a server."""
    return list(hashee.load(folder).predict(texts, progress=False))


def unit(vector: Any) -> Any:
    """Return a vector at length 1."""
    return vector / np.linalg.norm(vector)


class Server(RunningServer):
    """`hashee serve` in a process of its own, and requests to it."""

    def __init__(self, *arguments: object, token: str | None = None) -> None:
        self.token = token
        self.headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        super().__init__(*arguments, "--threads", 1, token=token, seconds=PATIENCE_MS / 1000)

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        """Send a JSON body."""
        return httpx.post(
            self.url + path, json=body, **{"timeout": PATIENCE_MS / 1000, "headers": self.headers} | options
        )

    def get(self, path: str, **options: Any) -> httpx.Response:
        """Fetch a path."""
        return httpx.get(self.url + path, **{"timeout": PATIENCE_MS / 1000, "headers": self.headers} | options)
