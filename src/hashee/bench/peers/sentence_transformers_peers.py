"""sentence-transformers with its ONNX backend; it gives embeddings, so it applies to embedding models only."""

import shutil
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer

from hashee.bench.batches import Padded
from hashee.bench.peers import Outputs, Run
from hashee.bench.peers.transformers_peers import tensors
from hashee.bench.protocol import Job
from hashee.embedded import minilm_folder


def export(job: Job) -> None:
    """Lay out a copy of the model in which the backend puts its graph."""
    folder = Path(job.artifacts) / "sentence-transformers"
    if not folder.exists():
        shutil.copytree(minilm_folder(), folder)
        SentenceTransformer(str(folder), backend="onnx", device="cpu").save_pretrained(str(folder))


def load(job: Job) -> Run:
    """Return the embedding model as a function of padded batches, tokenization left out as for all peers."""
    model = SentenceTransformer(
        str(Path(job.artifacts) / "sentence-transformers"), backend="onnx", device="cpu", local_files_only=True
    )

    def run(batch: Padded) -> Outputs:
        with torch.inference_mode():
            embeddings: Outputs = model(tensors(batch))["sentence_embedding"].numpy()
        return embeddings

    return run
