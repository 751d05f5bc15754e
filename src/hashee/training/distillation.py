"""How far a student follows its teacher, as settings say it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Distillation:
    """How much a student follows its teacher; what is left of 1 - logits is for the targets."""

    logits: float = 0.0
    temperature: float = 2.0
    hidden: float = 0.0
    """Weight of the hidden states, which is added."""

    def __bool__(self) -> bool:
        return self.logits > 0 or self.hidden > 0
