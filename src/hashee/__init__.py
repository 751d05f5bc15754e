"""Transformer encoders in which every token has a fixed exit layer: several times cheaper, native to Hugging Face."""

from typing import TYPE_CHECKING

from hashee.errors import (
    CheckpointError,
    HasheeError,
    InputError,
    TableError,
    TableMismatch,
    UnsupportedModel,
    UnsupportedOption,
)
from hashee.hf.registration import register_on_use
from hashee.packages import lazy_names

if TYPE_CHECKING:
    from hashee.data import load_task
    from hashee.data.batching import Batching
    from hashee.distillation.entry import speedup
    from hashee.evaluation import Evaluation, evaluate, tradeoff
    from hashee.export.loading import load
    from hashee.hf.building import build_seq2seq
    from hashee.hf.convert import convert
    from hashee.hf.explain import Explanation
    from hashee.hf.flops import FlopCount, count_flops
    from hashee.hf.generation_flops import GenerationCount, count_generation
    from hashee.hf.quantize import quantize
    from hashee.tables.budget import Budget
    from hashee.tables.counting import TokenCounts, count_tokens
    from hashee.tables.measuring import Importance, measure_importance, measure_movement
    from hashee.tables.table import ExitTable
    from hashee.training import FitResult, FitSettings, fit

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
    "GenerationCount",
    "HasheeError",
    "Importance",
    "InputError",
    "TableError",
    "TableMismatch",
    "TokenCounts",
    "UnsupportedModel",
    "UnsupportedOption",
    "__version__",
    "build_seq2seq",
    "convert",
    "count_flops",
    "count_generation",
    "count_tokens",
    "evaluate",
    "fit",
    "load",
    "load_task",
    "measure_importance",
    "measure_movement",
    "quantize",
    "speedup",
    "tradeoff",
]

# Imported when they are first asked for: torch and transformers take seconds.
_MODULES = {
    "Batching": "hashee.data.batching",
    "Budget": "hashee.tables.budget",
    "Evaluation": "hashee.evaluation",
    "ExitTable": "hashee.tables.table",
    "Explanation": "hashee.hf.explain",
    "FitResult": "hashee.training",
    "FitSettings": "hashee.training",
    "FlopCount": "hashee.hf.flops",
    "GenerationCount": "hashee.hf.generation_flops",
    "Importance": "hashee.tables.measuring",
    "TokenCounts": "hashee.tables.counting",
    "build_seq2seq": "hashee.hf.building",
    "convert": "hashee.hf.convert",
    "count_flops": "hashee.hf.flops",
    "count_generation": "hashee.hf.generation_flops",
    "count_tokens": "hashee.tables.counting",
    "evaluate": "hashee.evaluation",
    "fit": "hashee.training",
    "load": "hashee.export.loading",
    "load_task": "hashee.data",
    "measure_importance": "hashee.tables.measuring",
    "measure_movement": "hashee.tables.measuring",
    "quantize": "hashee.hf.quantize",
    "register_families": "hashee.hf.classes",
    "speedup": "hashee.distillation.entry",
    "tradeoff": "hashee.evaluation",
}


__getattr__, __dir__ = lazy_names(__name__, _MODULES)


# From here on AutoModelFor...from_pretrained restores converted models without trust_remote_code.
register_on_use()
