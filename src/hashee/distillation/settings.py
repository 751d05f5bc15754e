"""Settings of a speed-up without labels; the command line and Python share these fields."""

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from hashee.data import Recipe
from hashee.data.output_types import PlainPooling
from hashee.errors import InputError
from hashee.training.settings import FitSettings

INDIFFERENT = ("output", "threads", "resume", "overwrite", "quiet")
"""Fields that do not change the model."""
_EVALUATIONS = 5
"""How often the student is compared with the dense model on the held-out texts, and a checkpoint written, at most."""
_FEWEST_STEPS = 50
"""Between two of these."""


@dataclass(frozen=True)
class SpeedupSettings:
    """What is made faster, by how much and how; the text of a field is the help of its option."""

    texts: Annotated[Path | None, "Texts, one a line, or a column of them; default: embedded ones."] = None
    speedup: Annotated[float, "Times cheaper than the model as it is."] = 3.0
    output: Annotated[Path | None, "Folder for the faster model."] = None
    passes: Annotated[float, "Over the texts; 0 trains nothing."] = 1.0
    limit: Annotated[int | None, "Use so many of the texts only."] = None
    column: Annotated[str | None, "Column of the text; guessed if left out."] = None
    pair_column: Annotated[str | None, "Column of the second text of a pair."] = None
    pooling: Annotated[str | None, "Of plain encoders: mean, cls, none; default mean."] = None
    depth: Annotated[int | None, "Layers kept, from the first to the last; default: what suits the speed-up."] = None
    learning_rate: Annotated[float, "Highest, after warming up."] = 3e-4
    batch_size: Annotated[int, "Texts per optimizer step."] = 16
    tokens: Annotated[int, "Tokens run at once."] = 8192
    bf16: Annotated[bool, "Train in bfloat16 mixed precision."] = False
    seed: Annotated[int, "Seed of all that is random."] = 0
    threads: Annotated[int | None, "Threads; default: the usable cores."] = None
    resume: Annotated[bool, "Go on with what was interrupted in --output."] = False
    overwrite: Annotated[bool, "Replace the model in --output."] = False
    quiet: Annotated[bool, "Show no progress."] = False

    def __post_init__(self) -> None:
        for name in ("texts", "output"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, Path(getattr(self, name)))
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int | float) and low <= value <= high):
                bounds = f"at least {low:g}" if high == math.inf else f"from {low:g} to {high:g}"
                raise InputError(f"{name} is {value!r}; it must be {bounds}")
        if self.pooling is not None and self.pooling not in list(PlainPooling):
            raise InputError(f"unknown pooling {self.pooling!r}; choose from {', '.join(PlainPooling)}")
        if self.resume and self.overwrite:
            raise InputError("resume goes on with a run and overwrite replaces it; give one of them")
        if self.output is not None and self.output.exists() and not self.output.is_dir():
            raise InputError(f"output {self.output} is a file; name a folder")

    @property
    def recipe(self) -> Recipe:
        """How the student is trained."""
        return Recipe(self.learning_rate, self.batch_size, self.passes)

    def to_fit(self, output: Path, examples: int) -> FitSettings:
        """Return what the trainer is told. examples: texts to train on."""
        steps = math.ceil(self.passes * math.ceil(examples / self.batch_size))
        return FitSettings(
            task="texts",
            output=output,
            tokens=self.tokens,
            bf16=self.bf16,
            seed=self.seed,
            eval_steps=max(_FEWEST_STEPS, math.ceil(steps / _EVALUATIONS)) if steps > _FEWEST_STEPS else max(steps, 1),
            quiet=self.quiet,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}

    def difference(self, stored: dict[str, Any]) -> str | None:
        """Say how these settings differ from stored ones in what changes the result; None if they do not."""
        for name, value in self.to_dict().items():
            if name not in INDIFFERENT and stored.get(name) != value:
                return f"{name} was {stored.get(name)!r} and is now {value!r}"
        return None


PANELS = {
    "": ("texts", "speedup", "output", "passes", "limit", "resume"),
    "Texts": ("column", "pair_column", "pooling"),
    "Model": ("depth",),
    "Training": ("learning_rate", "batch_size", "tokens", "bf16"),
}
"""Options by panel of the help."""

_RANGES: dict[str, tuple[float, float]] = {
    "speedup": (1, math.inf),
    "passes": (0, math.inf),
    "limit": (1, math.inf),
    "depth": (1, math.inf),
    "learning_rate": (1e-12, 1),
    "batch_size": (2, math.inf),
    "tokens": (1, math.inf),
    "seed": (0, 2**32 - 1),
    "threads": (1, 1024),
}
