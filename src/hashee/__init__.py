"""Transformer encoders in which every token has a fixed exit layer: several times cheaper, native to Hugging Face."""

from hashee.budget import Budget
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
from hashee.evaluating import Evaluation, evaluate, tradeoff
from hashee.explain import Explanation
from hashee.families import register_families
from hashee.fitting import FitResult, FitSettings, fit
from hashee.flops import FlopCount, count_flops
from hashee.hashing.counting import TokenCounts, count_tokens
from hashee.importance import Importance, measure_importance, measure_movement
from hashee.loading import load
from hashee.predict import Batching
from hashee.quantize import quantize
from hashee.table import ExitTable
from hashee.tasks import load_task

__version__ = "0.1.0"

__all__ = [
    "Batching",
    "Budget",
    "CheckpointError",
    "Evaluation",
    "ExitTable",
    "Explanation",
    "FitResult",
    "FitSettings",
    "FlopCount",
    "HasheeError",
    "Importance",
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
    "evaluate",
    "fit",
    "load",
    "load_task",
    "measure_importance",
    "measure_movement",
    "quantize",
    "tradeoff",
]

# From here on AutoModelFor...from_pretrained restores converted models without trust_remote_code.
register_families()
