"""Small converted models and inputs for the tests of what transformers asks of its own models."""

from typing import Any

import torch
import transformers
from transformers import AutoModelForSeq2SeqLM, AutoModelForSequenceClassification

from architectures import FAMILIES, SEQ2SEQ, converted, make_exits, make_ids, make_mask, make_model

ENCODERS = [family for family in FAMILIES if family not in SEQ2SEQ]
EXITS = make_exits("random exits")
TOLERANCE = 1e-5


def dense_classifier(family: str, **changes: Any) -> Any:
    """Return a tiny classifier; of families that have none, a model that writes text."""
    auto_class = AutoModelForSeq2SeqLM if family in ("encoder-bart", "marian") else AutoModelForSequenceClassification
    return make_model(family, auto_class, **changes)


def classifier(family: str, **changes: Any) -> Any:
    """Return a tiny converted classifier."""
    return converted(dense_classifier(family, **changes), EXITS)


def inputs_for(family: str) -> dict[str, torch.Tensor]:
    ids = make_ids()
    if family in SEQ2SEQ:
        ids[:, -1] = 2  # the end of text, which BART's classifier reads
    decoded = {"decoder_input_ids": ids} if family == "marian" else {}
    return {"input_ids": ids, "attention_mask": make_mask("full"), **decoded}


def logits(model: Any, family: str) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(**inputs_for(family)).logits


def without_dropout(family: str) -> dict[str, float]:
    names = ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout_prob", "dropout")
    names += ("attention_dropout", "activation_dropout", "seq_classif_dropout", "encoder_layerdrop", "dropout_rate")
    config = transformers.AutoConfig.for_model(family) if family in transformers.CONFIG_MAPPING else None
    of_encoder = names[:2] if family == "encoder-bart" else ()
    return {name: 0.0 for name in names if config is None or hasattr(config, name) or name in of_encoder}
