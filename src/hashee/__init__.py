"""Transformer encoders in which every token has a fixed exit layer: several times cheaper, native to Hugging Face."""

from hashee.convert import convert
from hashee.errors import (
    CheckpointError,
    HasheeError,
    InputError,
    TableError,
    TableMismatch,
    UnsupportedModel,
    UnsupportedOption,
)
from hashee.explain import Explanation
from hashee.families import register_families
from hashee.flops import FlopCount, count_flops
from hashee.hashing.counting import TokenCounts, count_tokens
from hashee.loading import load
from hashee.predict import Batching
from hashee.table import ExitTable

__version__ = "0.1.0"

__all__ = [
    "Batching",
    "CheckpointError",
    "ExitTable",
    "Explanation",
    "FlopCount",
    "HasheeError",
    "InputError",
    "TableError",
    "TableMismatch",
    "TokenCounts",
    "UnsupportedModel",
    "UnsupportedOption",
    "__version__",
    "convert",
    "count_flops",
    "count_tokens",
    "load",
]

# From here on AutoModelFor...from_pretrained restores converted models without trust_remote_code.
register_families()
