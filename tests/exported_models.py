"""What the tests of exported models share: batches, and the distance between a model and its export."""

from typing import Any

import numpy as np
import torch
from transformers import (
    AutoModel,
)

from architectures import (
    converted,
    make_exits,
    make_ids,
    make_model,
    padded,
)
from hashee.embedded import rotten_tomatoes

TOLERANCE = 1e-5


def make_batch(model: Any, mask: Any) -> dict[str, Any]:
    return {"input_ids": padded(make_ids(*mask.shape), mask, model.config), "attention_mask": mask}


def truth(model: Any, batch: dict[str, Any]) -> Any:
    with torch.no_grad():
        return model(**batch)


def distance(model: Any, exported: Any, batch: dict[str, Any]) -> float:
    """Return the largest difference between a model and its export in any output."""
    outputs, expected = exported(**batch), truth(model, batch)
    worst = 0.0
    for name, output in outputs.items():
        wanted = expected[name].numpy()
        assert output.shape == wanted.shape
        assert (np.isnan(output) == np.isnan(wanted)).all()
        worst = max(worst, float(np.nanmax(np.abs(output - wanted), initial=0.0)))
    return worst


def make_bert(auto_class: Any = AutoModel, exits: str = "exits at 0", **changes: Any) -> Any:
    return converted(make_model("bert", auto_class, **changes), make_exits(exits))


def minilm_batch(model: Any, texts: int = 12) -> dict[str, Any]:
    sentences = [text for text, _ in rotten_tomatoes()][-texts:]
    return dict(model.tokenizer(sentences, padding=True, return_tensors="pt"))
