"""What an evaluation can be told; the command line and Python share these fields."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from hashee.errors import InputError
from hashee.export.runtime import BACKENDS

SPLITS = ("dev", "test")
AUTO = "auto"
"""For `dense`: the dense model that a fit left in its folder or names in its run.json, if it is still there."""


@dataclass(frozen=True)
class EvaluateSettings:
    """How a model is evaluated; what is said of each field is the help of its option on the command line."""

    split: Annotated[str | None, "dev or test; default: test, or dev if the answers of test are not there."] = None
    dense: Annotated[str | None, "Folder of a dense model to compare with; auto is the one that the fit names."] = AUTO
    backend: Annotated[str, "torch, onnx or openvino; for the latter two, a model is exported if need be."] = "torch"
    quantize: Annotated[str | None, "int8 to evaluate the model with int8 weights, on torch."] = None
    labels: Annotated[str | None, "The model's outputs by name, in order, with commas, if its config lacks names."] = (
        None
    )
    max_length: Annotated[int | None, "Tokens of a text at the most; default: as it was fitted, or the model's."] = None
    rounds: Annotated[int, "Timed rounds after the pass that answers, which warms up; 0 takes no time."] = 3
    timed_texts: Annotated[int, "Texts of a timed round at the most, spread over the split."] = 1000
    threads: Annotated[
        int | None, "Threads to run on; default: OMP_NUM_THREADS (for torch), or the cores that may be used."
    ] = None
    worst: Annotated[int, "Worst examples to show."] = 5
    sentences: Annotated[int, "Texts of the split to show with their exits."] = 5
    submission: Annotated[Path | None, "Write the answers as the GLUE and ELUE leaderboards take them."] = None
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


_LEAST = {"max_length": 3, "rounds": 0, "timed_texts": 1, "threads": 1, "worst": 0, "sentences": 0}
