"""How models write texts."""

from dataclasses import dataclass
from typing import Any

from hashee.errors import InputError


@dataclass(frozen=True)
class Writing:
    """How a model writes texts; None: as its generation config says."""

    max_new_tokens: int | None = None
    """Tokens of a text at most."""
    num_beams: int | None = None
    """Texts that are written side by side, of which the likeliest is kept; 1 is greedy."""
    length_penalty: float | None = None
    """Power of the length by which the score of a beam is divided."""
    no_repeat_ngram_size: int | None = None
    """No sequence of so many tokens is written twice; 0 allows all."""

    def __post_init__(self) -> None:
        for name, least in (("max_new_tokens", 1), ("num_beams", 1), ("no_repeat_ngram_size", 0)):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < least):
                raise InputError(f"{name} is {value!r}; it must be a whole number of at least {least}")

    def options(self) -> dict[str, Any]:
        """Return what `generate` takes; nothing is drawn at random."""
        given = {name: value for name, value in vars(self).items() if value is not None}
        return given | {"do_sample": False}
