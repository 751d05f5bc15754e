"""Transformer encoders in which every token has a fixed exit layer: several times cheaper, native to Hugging Face."""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hashee.errors import (
    CheckpointError,
    HasheeError,
    InputError,
    TableError,
    TableMismatch,
    UnsupportedModel,
    UnsupportedOption,
)
from hashee.lazy import lazy_names
from hashee.registration import register_on_use

if TYPE_CHECKING:
    from hashee.budget import Budget
    from hashee.convert import convert
    from hashee.evaluating import Evaluation, evaluate, tradeoff
    from hashee.explain import Explanation
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

# Imported when they are first asked for: torch and transformers take seconds.
_MODULES = {
    "Batching": "hashee.predict",
    "Budget": "hashee.budget",
    "Evaluation": "hashee.evaluating",
    "ExitTable": "hashee.table",
    "Explanation": "hashee.explain",
    "FitResult": "hashee.fitting",
    "FitSettings": "hashee.fitting",
    "FlopCount": "hashee.flops",
    "Importance": "hashee.importance",
    "TokenCounts": "hashee.hashing.counting",
    "convert": "hashee.convert",
    "count_flops": "hashee.flops",
    "count_tokens": "hashee.hashing.counting",
    "evaluate": "hashee.evaluating",
    "fit": "hashee.fitting",
    "load": "hashee.loading",
    "load_task": "hashee.tasks",
    "measure_importance": "hashee.importance",
    "measure_movement": "hashee.importance",
    "quantize": "hashee.quantize",
    "register_families": "hashee.families",
    "tradeoff": "hashee.evaluating",
}


__getattr__, __dir__ = lazy_names(__name__, _MODULES)


class _Package(ModuleType):
    """This package, in which `convert` and `quantize` are functions although modules have the same names."""

    def __setattr__(self, name: str, value: Any) -> None:
        # Importing hashee.convert, which any other module may do first, would put the module in the function's place.
        if isinstance(value, ModuleType) and _MODULES.get(name) == value.__name__:
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package

# From here on AutoModelFor...from_pretrained restores converted models without trust_remote_code.
register_on_use()
