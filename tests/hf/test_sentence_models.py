"""sentence-transformers objects in, objects of the same kind out."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer, BertModel

import hashee
from hashee.embedded import minilm_folder
from hashee.engine.reference import exits_by_hooks

st = pytest.importorskip("sentence_transformers")

TEXTS = ["a quiet masterpiece", "The film is overlong, and its jokes are older than its audience.", "ok"]
PAIRS = [("what is a hash table?", text) for text in TEXTS]


@pytest.fixture(scope="module")
def embedder() -> Any:
    return st.SentenceTransformer(str(minilm_folder()), device="cpu")


@pytest.fixture(scope="module")
def table(embedder: Any) -> hashee.ExitTable:
    return hashee.ExitTable.at_random(embedder.tokenizer, num_layers=6, seed=0)


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("reranker")
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(minilm_folder(), num_labels=1)
    AutoModelForSequenceClassification.from_pretrained(minilm_folder(), config=config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(minilm_folder()).save_pretrained(folder)
    return st.CrossEncoder(str(folder), device="cpu")


def test_an_embedder_is_converted_as_a_whole(embedder: Any, table: hashee.ExitTable, tmp_path: Path) -> None:
    before = embedder.encode(TEXTS)
    fast = hashee.convert(embedder, table)
    assert type(fast) is type(embedder)
    assert type(fast[0].auto_model).__name__ == "HasheeBertModel"
    tokens = embedder.tokenize(TEXTS)
    with torch.no_grad(), exits_by_hooks(embedder[0].auto_model, table.exit_layers, tokens["input_ids"]):
        expected = embedder(dict(tokens))["sentence_embedding"]
    assert np.abs(fast.encode(TEXTS) - expected.numpy()).max() <= 1e-5
    assert np.array_equal(embedder.encode(TEXTS), before), "the dense object is left alone"
    assert fast[0].auto_model.get_input_embeddings().weight is embedder[0].auto_model.get_input_embeddings().weight
    fast.save(str(tmp_path))
    again = st.SentenceTransformer(str(tmp_path), device="cpu")
    assert np.array_equal(again.encode(TEXTS), fast.encode(TEXTS))


def test_a_reranker_is_converted_as_a_whole(reranker: Any, table: hashee.ExitTable, tmp_path: Path) -> None:
    before = reranker.predict(PAIRS)
    fast = hashee.convert(reranker, table)
    assert type(fast) is type(reranker)
    scores = fast.predict(PAIRS)
    assert np.abs(scores - before).max() > 1e-4, "exits must make a difference here"
    assert np.array_equal(reranker.predict(PAIRS), before)
    never = hashee.convert(reranker, hashee.ExitTable.never(reranker.tokenizer, num_layers=6))
    assert np.abs(never.predict(PAIRS) - before).max() <= 1e-5
    fast.save_pretrained(str(tmp_path))
    assert np.array_equal(st.CrossEncoder(str(tmp_path), device="cpu").predict(PAIRS), scores)
    assert [row["corpus_id"] for row in fast.rank(PAIRS[0][0], TEXTS)] == list(np.argsort(-scores))


def test_a_table_of_another_tokenizer_is_refused(embedder: Any) -> None:
    with pytest.raises(hashee.TableMismatch):
        hashee.convert(embedder, hashee.ExitTable.never(100, num_layers=6))


def test_encoders_without_a_pooler(table: hashee.ExitTable) -> None:
    dense = BertModel.from_pretrained(minilm_folder(), add_pooling_layer=False)
    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    model = hashee.convert(dense, table, tokenizer=tokenizer)
    with torch.no_grad():
        output = model(**tokenizer(TEXTS, padding=True, return_tensors="pt"))
    assert output.pooler_output is None and output.last_hidden_state.isfinite().all()


def test_objects_without_one_transformer_are_refused() -> None:
    from sentence_transformers.sentence_transformer import modules

    static = st.SentenceTransformer(
        modules=[modules.StaticEmbedding(AutoTokenizer.from_pretrained(minilm_folder()), embedding_dim=8)]
    )
    with pytest.raises(hashee.UnsupportedModel, match="holds 0 transformers models"):
        hashee.convert(static, hashee.ExitTable.never(100, num_layers=6))
