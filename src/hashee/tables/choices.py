"""What can be chosen for tables by importance; apart from what it does, so that options can be listed at once."""

from enum import StrEnum

MOST_RARITY = 8


class Signal(StrEnum):
    """What must suffer for an update to be worth something."""

    LOSS = "loss"
    """The model's loss on the labels of the batches."""
    SAMPLED = "sampled"
    """The loss on labels drawn from the model's own answers; none are needed. (On its whole distribution instead of a
    draw the gradient would be zero: a model agrees with itself.)"""
    ANSWER = "answer"
    """The lead of the highest logit over the mean of the others, or the score itself; no labels are needed."""


class Movement(StrEnum):
    """How the way that a state goes in a layer is measured."""

    DISTANCE = "distance"
    """Length of the step, in lengths of the new state."""
    ANGLE = "angle"
    """One minus the cosine of old and new state."""


class Prior(StrEnum):
    """What a type seen only a few times is taken to be like."""

    OVERALL = "overall"
    """The mean of all types."""
    FREQUENCY = "frequency"
    """The mean of the types that occur about as often (up to twice)."""
    NEIGHBOURS = "neighbours"
    """The mean of the types with the nearest input embeddings."""
