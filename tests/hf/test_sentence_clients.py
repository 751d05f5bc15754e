"""What `hashee speedup` writes, in the hands of sentence-transformers' own clients: encoding, processes, training."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hashee.distillation.entry import run_speedup
from hashee.hf.text_models import open_text_model
from tiny_text_models import make_folder, make_pairs, make_texts

st = pytest.importorskip("sentence_transformers")

TEXTS = make_texts(40)
PAIRS = make_pairs(6, 5)
PROMPTS = {"query": "the film ", "document": "a "}
QUICK: dict[str, Any] = {"speedup": 1.4, "batch_size": 16, "quiet": True}


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a SentenceTransformer with prompts and normalised embeddings, made faster."""
    from sentence_transformers.sentence_transformer import modules

    plain = st.SentenceTransformer(str(make_folder(tmp_path_factory.mktemp("encoder"))), device="cpu")
    dense = st.SentenceTransformer(modules=[*plain.children(), modules.Normalize()], prompts=PROMPTS, device="cpu")
    folder = tmp_path_factory.mktemp("fast") / "embedder"
    run_speedup(dense, TEXTS, output=folder, **QUICK)
    return folder


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a CrossEncoder made faster."""
    dense = st.CrossEncoder(str(make_folder(tmp_path_factory.mktemp("scorer"), scores=True)), device="cpu")
    folder = tmp_path_factory.mktemp("fast") / "reranker"
    run_speedup(dense, PAIRS, output=folder, **(QUICK | {"speedup": 2.5}))
    return folder


def test_embedders_encode_with_prompts_truncated_and_compare(embedder: Path) -> None:
    client = st.SentenceTransformer(str(embedder), device="cpu")
    assert type(client[0].auto_model).__name__ == "HasheeBertModel"
    queries = client.encode_query(TEXTS)
    expected = np.stack(list(open_text_model(embedder).outputs([PROMPTS["query"] + text for text in TEXTS])))
    assert np.abs(queries - expected).max() <= 1e-5
    assert np.array_equal(queries, client.encode(TEXTS, prompt_name="query"))
    assert np.abs(queries - client.encode(TEXTS)).max() > 1e-3, "the prompt must make a difference"
    similarities = client.similarity(queries, client.encode_document(TEXTS))
    assert similarities.shape == (len(TEXTS), len(TEXTS)) and float(similarities.abs().max()) <= 1 + 1e-5
    assert torch.allclose(client.similarity(queries, queries).diagonal(), torch.ones(len(TEXTS)), atol=1e-5)
    short = st.SentenceTransformer(str(embedder), device="cpu", truncate_dim=5)
    assert np.array_equal(short.encode(TEXTS), client.encode(TEXTS)[:, :5])


def test_rerankers_predict_and_rank(reranker: Path) -> None:
    client = st.CrossEncoder(str(reranker), device="cpu")
    scores = client.predict(PAIRS, activation_fn=torch.nn.Identity())
    expected = np.stack(list(open_text_model(reranker).outputs(PAIRS)))[:, 0]
    assert np.abs(scores - expected).max() <= 1e-5
    documents = [document for _, document in PAIRS[:5]]
    ranked = client.rank(PAIRS[0][0], documents, top_k=3, return_documents=True)
    best = np.argsort(-expected[:5])[:3].tolist()
    assert [row["corpus_id"] for row in ranked] == best
    assert [row["text"] for row in ranked] == [documents[number] for number in best]


POOL = """
import sys
import numpy as np
from sentence_transformers import SentenceTransformer

if __name__ == "__main__":
    texts = [f"the film is {number}" for number in range(24)]
    model = SentenceTransformer(sys.argv[1], device="cpu", trust_remote_code=True)
    pool = model.start_multi_process_pool(["cpu", "cpu"])
    found = model.encode(texts, pool=pool, chunk_size=5)
    model.stop_multi_process_pool(pool)
    assert np.abs(found - model.encode(texts)).max() <= 1e-5
    assert type(model[0].auto_model).__name__ == "HasheeBertModel"
    print("equal")
"""


def test_a_pool_of_processes_gives_the_same(embedder: Path, tmp_path: Path) -> None:
    # The hard case: the script never imports hashee. Workers start from nothing and unpickle the model, which does.
    script = tmp_path / "pool.py"
    script.write_text(POOL, encoding="utf-8")
    command = [sys.executable, str(script), str(embedder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0 and "equal" in done.stdout, done.stderr


def test_embedders_train_on_and_come_back(embedder: Path, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
    from sentence_transformers.sentence_transformer.losses import CosineSimilarityLoss

    model = st.SentenceTransformer(str(embedder), device="cpu")
    # All texts look alike to so small a model; it learns that they are not.
    pairs = make_pairs(40, 2)
    rows = {"one": [pair[0] for pair in pairs], "two": [pair[1] for pair in pairs], "score": [0.0] * len(pairs)}
    before = model.encode(TEXTS)
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(tmp_path / "run"),
        max_steps=20,
        per_device_train_batch_size=8,
        learning_rate=1e-3,
        logging_steps=5,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = SentenceTransformerTrainer(
        model=model, args=arguments, train_dataset=datasets.Dataset.from_dict(rows), loss=CosineSimilarityLoss(model)
    )
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert trainer.state.global_step == 20 and losses[-1] < losses[0]
    after = model.encode(TEXTS)
    assert np.isfinite(after).all() and np.abs(after - before).max() > 1e-3
    model.save_pretrained(str(tmp_path / "tuned"))
    again = st.SentenceTransformer(str(tmp_path / "tuned"), device="cpu")
    assert again[0].auto_model.exit_table == model[0].auto_model.exit_table
    assert np.array_equal(again.encode(TEXTS), after)
