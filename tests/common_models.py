"""Small converted models and inputs for the tests of what transformers asks of its own models."""

from typing import Any

import torch
import transformers
from transformers import AutoModelForSequenceClassification

from architectures import FAMILIES, converted, make_exits, make_ids, make_mask, make_model

SEQ2SEQ = ("bart", "mbart", "cpt")
ENCODERS = [family for family in FAMILIES if family not in SEQ2SEQ]
EXITS = make_exits("random exits")
TOLERANCE = 1e-5


def classifier(family: str, **changes: Any) -> Any:
    """Return a tiny converted classifier."""
    return converted(make_model(family, AutoModelForSequenceClassification, **changes), EXITS)


def inputs_for(family: str) -> dict[str, torch.Tensor]:
    ids = make_ids()
    if family in SEQ2SEQ:
        ids[:, -1] = 2  # the end of text, which BART's classifier reads
    return {"input_ids": ids, "attention_mask": make_mask("full")}


def logits(model: Any, family: str) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(**inputs_for(family)).logits


def without_dropout(family: str) -> dict[str, float]:
    names = ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout_prob", "dropout")
    names += ("attention_dropout", "activation_dropout", "seq_classif_dropout", "encoder_layerdrop")
    config = transformers.AutoConfig.for_model(family) if family in transformers.CONFIG_MAPPING else None
    return {name: 0.0 for name in names if config is None or hasattr(config, name)}
