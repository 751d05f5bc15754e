"""What models without labels give for a text, in a module without heavy imports, so that commands can list it."""

from enum import StrEnum


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
