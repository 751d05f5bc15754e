"""Options of tables by importance, in a module without heavy imports, so that commands can list them quickly."""

from enum import StrEnum

MOST_RARITY = 8


class Signal(StrEnum):
    """The quantity whose change, if a layer left a token alone, is what the update of that token is worth."""

    LOSS = "loss"
    """The model's loss on the labels of the batches."""
    SAMPLED = "sampled"
    """The loss on labels drawn from the model's own predictions; no labels are needed. (The expected loss under its own
    distribution, instead of a draw, has no gradient: a model agrees with itself.)"""
    ANSWER = "answer"
    """The margin of the highest logit over the mean of the others, or the score itself; no labels are needed."""


class Movement(StrEnum):
    """How far a hidden state moves in a layer."""

    DISTANCE = "distance"
    """Norm of the difference, relative to the norm of the new state."""
    ANGLE = "angle"
    """One minus the cosine of old and new state."""


class Prior(StrEnum):
    """The prior towards which the mean of a token type with few occurrences is shrunk."""

    OVERALL = "overall"
    """The mean of all types."""
    FREQUENCY = "frequency"
    """The mean of the types that occur about as often (up to twice)."""
    NEIGHBOURS = "neighbours"
    """The mean of the types with the nearest input embeddings."""
