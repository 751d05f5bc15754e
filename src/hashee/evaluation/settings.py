"""What an evaluation can be told; the command line and Python share these fields."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from hashee.errors import InputError

SPLITS = ("dev", "test")
SPEEDUPS = (2.0, 3.0, 5.0)
"""Speed-ups that a trade-off compares, unless told otherwise."""
TABLES = ("importance", "frequency")
"""Kinds of exit tables that a trade-off compares, unless told otherwise."""
OWN = ("hash", "speedup", "table", "depth", "dense", "compare_dense", "warm_start", "resume", "overwrite")
"""Settings of a fit that a trade-off decides for each point."""
AUTO = "auto"
"""For `dense`: the dense model that a fit left in its folder or names in its run.json, if it is still there."""


@dataclass(frozen=True)
class EvaluateSettings:
    """How a model is evaluated; what is said of each field is the help of its option; docs/evaluating.md says more."""

    split: Annotated[str | None, "dev or test; default: test if it has labels."] = None
    dense: Annotated[str | None, "Dense model to compare with."] = AUTO
    backend: Annotated[str, "torch, onnx or openvino."] = "torch"
    quantize: Annotated[str | None, "int8: evaluate with int8 weights, on torch."] = None
    labels: Annotated[str | None, "Names of the outputs in order, with commas."] = None
    max_length: Annotated[int | None, "Tokens of a text; default: as it was fitted."] = None
    rounds: Annotated[int, "Timed rounds; 0 takes no time."] = 3
    timed_texts: Annotated[int, "Texts of a timed round."] = 1000
    threads: Annotated[int | None, "Threads to run on; default: the usable cores."] = None
    worst: Annotated[int, "Worst examples to show, errors first."] = 5
    sentences: Annotated[int, "Texts to show with their exits."] = 5
    submission: Annotated[Path | None, "File of predictions for GLUE and ELUE."] = None
    quiet: Annotated[bool, "Show no progress."] = False

    def __post_init__(self) -> None:
        for name in ("dense", "labels"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                joined = ",".join(value) if isinstance(value, list | tuple) else str(value)
                object.__setattr__(self, name, joined)
        if self.submission is not None:
            object.__setattr__(self, "submission", Path(self.submission))
        if self.split not in (None, *SPLITS):
            raise InputError(f"split is {self.split!r}; choose dev or test")
        from hashee.export.runtime import BACKENDS  # noqa: PLC0415  # its libraries are slow to import

        if self.backend not in ("torch", *BACKENDS):
            raise InputError(f"unknown backend {self.backend!r}; choose from torch, {', '.join(BACKENDS)}")
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < least):
                raise InputError(f"{name} is {value!r}; it must be at least {least}")

    @property
    def label_names(self) -> tuple[str, ...] | None:
        """The names of the model's outputs, if they were given."""
        return None if self.labels is None else tuple(name.strip() for name in self.labels.split(","))


PANELS = {
    "": ("split",),
    "Model": ("dense", "backend", "quantize", "labels", "max_length"),
    "Timing": ("rounds", "timed_texts", "threads"),
    "Report": ("worst", "sentences", "submission", "quiet"),
}
"""Options by panel of the help; docs/evaluating.md says more of each."""

_LEAST = {"max_length": 3, "rounds": 0, "timed_texts": 1, "threads": 1, "worst": 0, "sentences": 0}
