"""Folders of sentence-transformers are served with what comes behind their encoder."""

from pathlib import Path

import numpy as np
import pytest
import torch

import hashee
from hashee.data.tokenizing import TextTokenizer
from hashee.serving.settings import ModelSettings
from hashee.serving.worker import Job, open_model
from tiny_text_models import make_folder, make_texts

st = pytest.importorskip("sentence_transformers")

TEXTS = make_texts(12)


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A converted embedder whose folder has a Dense layer behind the pooling."""
    from sentence_transformers.sentence_transformer import modules

    torch.manual_seed(0)
    plain = st.SentenceTransformer(str(make_folder(tmp_path_factory.mktemp("encoder"))), device="cpu")
    behind = [modules.Dense(24, 10), modules.Normalize()]
    dense = st.SentenceTransformer(modules=[*plain.children(), *behind], device="cpu")
    folder = tmp_path_factory.mktemp("converted")
    table = hashee.ExitTable.by_frequency(dense.tokenizer, TEXTS, num_layers=3)
    hashee.convert(dense, table).save_pretrained(str(folder))
    return folder


@pytest.mark.parametrize(("backend", "least"), [("torch", 1 - 1e-6), ("int8", 0.98)])
def test_embeddings_are_those_of_the_client(embedder: Path, backend: str, least: float) -> None:
    expected = st.SentenceTransformer(str(embedder), device="cpu").encode(TEXTS)
    assert expected.shape == (len(TEXTS), 10)
    model = open_model(ModelSettings(embedder, backend=backend))
    tokenizer = st.SentenceTransformer(str(embedder), device="cpu").tokenizer
    columns = TextTokenizer(tokenizer, model.opened.max_length, model.opened.token_types)(TEXTS)
    done = model.run(Job.of(1, {name: [np.array(row) for row in rows] for name, rows in columns.items()}))
    found = np.stack([np.asarray(output) for output in done.outputs])
    assert (found * expected).sum(axis=1).min() >= least
