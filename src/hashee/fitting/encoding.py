"""Tokenized examples, which training and evaluation share: see `hashee.tasks.encoding`."""

from hashee.tasks.encoding import Encoded, Encoder

__all__ = ["Encoded", "Encoder"]
