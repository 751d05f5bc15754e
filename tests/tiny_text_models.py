"""A tiny embedder, a tiny reranker and texts for them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModel, AutoModelForSequenceClassification

from architectures import make_config
from small_tokenizer import WORDS, make_tokenizer


def make_folder(folder: Path, *, scores: bool = False, layers: int = 3) -> Path:
    """Write a plain transformers folder: an encoder, or a model with one score."""
    tokenizer = make_tokenizer()
    torch.manual_seed(0)
    options: dict[str, Any] = {"num_labels": 1} if scores else {}
    # So narrow a model hardly sees its input through weights as small as usual.
    options |= {"initializer_range": 0.2, "num_hidden_layers": layers, "pad_token_id": tokenizer.pad_token_id}
    config = make_config("bert", vocab_size=len(tokenizer), **options)
    (AutoModelForSequenceClassification if scores else AutoModel).from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def make_texts(number: int, seed: int = 0) -> list[str]:
    """Return different texts of a few words."""
    random = np.random.default_rng(seed)
    found: dict[str, None] = {}
    while len(found) < number:
        found[" ".join(random.choice(WORDS, size=random.integers(3, 12)))] = None
    return list(found)


def make_pairs(queries: int, documents: int) -> list[tuple[str, str]]:
    """Return as many pairs for each query as there are documents."""
    texts = make_texts(queries * documents, seed=1)
    return [
        (f"{query} never", texts[number * documents + each])
        for number, query in enumerate(make_texts(queries, seed=2))
        for each in range(documents)
    ]


def write_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write lines of JSON."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
