"""Multiply-accumulates per second of a model, measured on the batches that it runs."""

from dataclasses import dataclass

_KEPT = 0.95
"""Part of the past that counts when another batch was run: about the last twenty matter."""


@dataclass
class Throughput:
    """A mean over the last batches, in which those that took longer weigh more."""

    macs: float = 0.0
    seconds: float = 0.0
    texts: float = 0.0

    def add(self, macs: int, seconds: float, texts: int) -> None:
        """Take a batch into account."""
        self.macs = _KEPT * self.macs + macs
        self.seconds = _KEPT * self.seconds + max(seconds, 1e-6)
        self.texts = _KEPT * self.texts + texts

    @property
    def macs_per_second(self) -> float:
        """While the model runs; 1 before anything was measured, so that it can be divided by."""
        return max(self.macs / self.seconds, 1.0) if self.seconds else 1.0

    @property
    def texts_per_second(self) -> float:
        """While the model runs."""
        return self.texts / self.seconds if self.seconds else 0.0
