"""What int8 costs in quality, on real weights: all-MiniLM-L6-v2 on the test set of STS-B, with and without exits.

A text's embedding is the mean of its token states, as the model was trained; a pair's score is the cosine. Exits are
applied without fine-tuning, which costs far more than int8 does, so int8 is compared at equal exits.

    HASHEE_DATA=... python benchmarks/int8_quality.py results/quality/int8-minilm-stsb.json
"""

import argparse
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import spearmanr
from transformers import AutoModel, AutoTokenizer

from hashee import ExitTable, convert
from hashee.cost.machine import describe_machine
from hashee.data.texts import read_labelled, read_texts
from hashee.embedded import minilm_folder
from hashee.engine.int8 import Int8Linear
from hashee.hf.quantize import quantize

LAYERS = 6

Embeddings = NDArray[np.float32]


def main() -> None:
    """Embed all sentences with every model and write the figures."""
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("output", type=Path)
    output = arguments.parse_args().output
    data = Path(os.environ["HASHEE_DATA"]) / "STS-B"
    pairs = list(read_labelled([data / "test.jsonl.gz"], None, None, None))
    scores = np.array([float(score) for _, score in pairs])
    sentences = [sentence for pair, _ in pairs for sentence in pair]
    rows = list(measure(sentences, scores, [data / "train.jsonl.gz", data / "dev.jsonl.gz"]))
    report = {
        "task": "STS-B test, Spearman correlation of the cosine of mean-pooled states with the scores, times 100",
        "model": "all-MiniLM-L6-v2, 6 layers, width 384, not fine-tuned",
        "pairs": len(pairs),
        "rows": rows,
        "machine": describe_machine(torch.get_num_threads()),
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(rows, indent=1))


def measure(sentences: list[str], scores: NDArray[np.float64], corpus: list[Path]) -> Iterator[dict[str, Any]]:
    """Yield the figures of float32 and int8, at full depth and with exits."""
    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    tables = {
        "full depth": ExitTable.never(tokenizer, num_layers=LAYERS),
        "frequency": ExitTable.by_frequency(tokenizer, read_texts(corpus), num_layers=LAYERS, progress=False),
    }
    for name, table in tables.items():
        model = convert(AutoModel.from_pretrained(minilm_folder()).eval(), table, tokenizer=tokenizer)
        exact = embed(model, sentences)
        yield {"exits": name, "dtype": "float32", "spearman": spearman(exact, scores)}
        quantized = quantize(model)
        rounded = embed(quantized, sentences)
        cosines = (exact * rounded).sum(1)
        yield {
            "exits": name,
            "dtype": "int8",
            "int8_layers": sum(isinstance(module, Int8Linear) for module in quantized.modules()),
            "spearman": spearman(rounded, scores),
            "cosine_with_float32": {
                "mean": float(cosines.mean()),
                "percentile_1": float(np.percentile(cosines, 1)),
                "min": float(cosines.min()),
            },
        }


def embed(model: Any, sentences: list[str]) -> Embeddings:
    """Return the mean of each sentence's token states, of unit length: (sentences, width)."""
    means = np.stack([states.mean(0) for states in model.predict(sentences, progress=False)])
    embeddings: Embeddings = means / np.linalg.norm(means, axis=1, keepdims=True)
    return embeddings


def spearman(embeddings: Embeddings, scores: NDArray[np.float64]) -> float:
    """Return the correlation of cosines with scores, times 100; pairs are neighbours: (2 * pairs, width)."""
    cosines = (embeddings[::2] * embeddings[1::2]).sum(1)
    return 100 * float(spearmanr(cosines, scores).statistic)


if __name__ == "__main__":
    main()
