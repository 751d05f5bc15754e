"""What models without labels give for a text, in a module without heavy imports, so that commands can list it."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any


class OutputType(StrEnum):
    """What users get of a model."""

    EMBEDDING = "embedding"
    """One vector for each text."""
    SCORE = "score"
    """One score, or a few logits, for each text or pair of texts."""
    STATES = "states"
    """One vector for each token of a text."""


class PlainPooling(StrEnum):
    """How the states of a plain encoder become an embedding."""

    MEAN = "mean"
    """Their mean."""
    CLS = "cls"
    """The state of the first token."""
    NONE = "none"
    """They do not: users read the state of every token."""


def pooling_told(config: Mapping[str, Any]) -> PlainPooling | None:
    """Return how a Pooling of sentence-transformers makes one vector of many; None if not by mean or first state alone.

    config: one word in new versions, a flag for each way in old ones.
    """
    ways = {PlainPooling.MEAN: "pooling_mode_mean_tokens", PlainPooling.CLS: "pooling_mode_cls_token"}
    found = [way for way, flag in ways.items() if config.get("pooling_mode") == way or config.get(flag) is True]
    flags = [flag for flag, on in config.items() if flag.startswith("pooling_mode_") and on is True]
    return found[0] if len(found) == 1 and len(flags) <= 1 else None
