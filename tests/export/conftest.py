"""A real model and its export, made once for all tests of exported models."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

import hashee
from hashee.embedded import minilm_folder, rotten_tomatoes
from hashee.export import export_onnx


@pytest.fixture(scope="session")
def minilm() -> Any:
    """Real weights and a real table, under a head with fixed weights."""
    path = minilm_folder()
    tokenizer = AutoTokenizer.from_pretrained(path)
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(path, num_labels=2).eval()
    texts = [text for text, _ in rotten_tomatoes()]
    table = hashee.ExitTable.by_frequency(tokenizer, texts[:2000], num_layers=6)
    return hashee.convert(model, table, tokenizer=tokenizer)


@pytest.fixture(scope="session")
def minilm_export(minilm: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_onnx(minilm, tmp_path_factory.mktemp("minilm") / "model")
