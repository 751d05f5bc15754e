"""sentence-transformers with its ONNX backend; it gives embeddings, so it applies to embedding models only."""

import shutil
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer

from hashee.bench.baselines import Outputs, RunBatch
from hashee.bench.baselines.transformers_baselines import tensors
from hashee.bench.batches import Padded
from hashee.bench.protocol import ClockJob
from hashee.embedded import minilm_folder


def export(job: ClockJob) -> None:
    """Lay out a copy of the model in which the backend puts its graph."""
    folder = Path(job.artifacts) / "sentence-transformers"
    if not folder.exists():
        shutil.copytree(minilm_folder(), folder)
        SentenceTransformer(str(folder), backend="onnx", device="cpu").save_pretrained(str(folder))


def load(job: ClockJob) -> RunBatch:
    """Return the embedding model as a function of padded batches, tokenization left out as for all baselines."""
    model = SentenceTransformer(
        str(Path(job.artifacts) / "sentence-transformers"), backend="onnx", device="cpu", local_files_only=True
    )

    def run(batch: Padded) -> Outputs:
        with torch.inference_mode():
            embeddings: Outputs = model(tensors(batch))["sentence_embedding"].numpy()
        return embeddings

    return run
