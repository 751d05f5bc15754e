"""Result files of the study: one JSON for each run, with everything needed to compare it and to repeat it."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from hashee.data.run_record import PARTS, PartRecord
from hashee.errors import InputError
from hashee.files import replaced_atomically

WORK = "work"
"""Folder of models below that of results."""
_SCHEDULE = (
    *("epochs", "learning_rate", "batch_size", "warmup_ratio", "max_grad_norm", "decoder_rate", "max_length", "tokens"),
    *("eval_steps", "bf16", "metric", "max_new_tokens", "num_beams", "eval_examples"),
)
"""Settings of how long and how fast is trained and how texts are written, which do not make another method."""
PATHS = ("dense", "table", "unlabelled")
"""Settings that name files, which are recorded without the folders that they lie in on one machine."""


@dataclass(frozen=True)
class TimedPart(PartRecord):
    """One part of a model that writes text beside that of the dense baseline, each for the texts that it wrote."""

    dense_seconds: float = 0.0
    """That the part of the dense baseline ran, for all texts, in the same run."""

    @property
    def time_speedup(self) -> float | None:
        """Times less time than the dense baseline took; None for what takes none."""
        return self.dense_seconds / self.seconds if self.seconds else None


@dataclass(frozen=True)
class WritingPoint:
    """What models that write text reach at an operating point, and what each part of them costs.

    Speed-ups are over the dense baseline with the texts that that wrote, as in the paper without scoring the
    vocabulary at the end of each step, which is in `head_per_text`.
    """

    metrics: Mapping[str, Mapping[str, float]]
    """All metrics by split, such as ROUGE-1, ROUGE-2 and ROUGE-L."""
    encoder: TimedPart
    decoder: TimedPart
    total: TimedPart
    head_per_text: float = 0.0
    """Multiply-accumulates of scoring the vocabulary at the end of each step."""
    dense_head_per_text: float = 0.0
    tokens: float = 0.0
    """That the decoder read to write a text, on average."""
    dense_tokens: float = 0.0


@dataclass(frozen=True)
class OperatingPoint:
    """One point of a method's curve: quality and cost at a value of its knob."""

    knob: float
    dev: float
    test: float | None
    executed_macs: float
    """Per text of the split that was measured last, as the engine runs it."""
    paper_macs: float
    """Likewise, by the paper's count."""
    speedup: float
    """Full depth of the backbone / executed."""
    paper_speedup: float
    """Full depth of the backbone / the paper's count."""
    candidate: str = ""
    """Which of the method's models it is, where it has several."""
    model: str = ""
    """Folder of that model below the run's work folder; it is there if models were kept."""
    writing: WritingPoint | None = None
    """Of models that write text."""


@dataclass(frozen=True)
class RunResult:
    """What a method reached on a task with a backbone and a seed."""

    method: str
    task: str
    backbone: str
    seed: int
    passes: float = 0.0
    """Over the training examples, in all stages on the way to the model."""
    seconds: float = 0.0
    """That training and tables took, shared stages included."""
    quality: Mapping[str, float | None] = field(default_factory=lambda: {"dev": None, "test": None})
    """At the operating point that is best on dev."""
    curve: tuple[OperatingPoint, ...] = ()
    not_applicable: str | None = None
    """Why the method cannot be used on the task."""
    knob: str = ""
    """What the points of the curve differ in."""
    metric: str = ""
    layers: int = 0
    """Of the backbone."""
    full_depth_macs: float = 0.0
    """Of the whole backbone per text, by the paper's count."""
    bert_base_macs: float = 0.0
    """Of 12-layer BERT-base on the same texts."""
    data: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    fingerprint: str = ""
    """Of settings and data; another one means that the result is stale."""
    versions: Mapping[str, str] = field(default_factory=dict)
    hardware: Mapping[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """Where the file lies below the folder of results."""
        return Path(self.task) / f"{self.backbone}-{self.method}{self.variant}-seed{self.seed}.json"

    @property
    def variant(self) -> str:
        """What tells the run from others of the method by its settings: `-depth6-num_buckets3`, or nothing."""
        return self._told_apart_by(_SCHEDULE)

    @property
    def label(self) -> str:
        """The method as tables and figures call it: with what it was given beyond its own, such as `-unlabelled`.

        Depth and buckets are left out; they have tables of their own.
        """
        return self.method + self._told_apart_by((*_SCHEDULE, "depth", "num_buckets"))

    def _told_apart_by(self, but: tuple[str, ...]) -> str:
        told = {name: value for name, value in self.settings.items() if name not in but and value is not None}
        return "".join(f"-{name}" if name in PATHS else f"-{name}{value}" for name, value in sorted(told.items()))

    @property
    def work(self) -> Path:
        """Where models lie below the folder of results; methods with all else equal share it."""
        return Path(WORK) / f"{self.task}-{self.backbone}-seed{self.seed}{self.variant}"

    def has_models(self, folder: Path) -> bool:
        """Whether the models of all points were kept and are still there. folder: of results."""
        return all(point.model and (folder / self.work / point.model).is_dir() for point in self.curve)

    def write(self, folder: Path) -> Path:
        """Write the file whole or not at all, and return where."""
        path = folder / self.path
        path.parent.mkdir(parents=True, exist_ok=True)
        with replaced_atomically(path) as unfinished:
            unfinished.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
        return path


def read_result(path: Path) -> RunResult:
    """Read one result file."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        known = {each.name for each in fields(RunResult)}
        points = tuple(_point(point) for point in values["curve"])
        return RunResult(**{name: value for name, value in values.items() if name in known} | {"curve": points})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is no result of a study ({error}); run it again with `hashee study run`") from None


def _point(values: Mapping[str, Any]) -> OperatingPoint:
    writing = values.get("writing")
    if writing is not None:
        parts = {name: TimedPart(**writing[name]) for name in PARTS}
        writing = WritingPoint(**{**writing, **parts})
    return OperatingPoint(**{**values, "writing": writing})


def read_results(folder: Path) -> Iterator[RunResult]:
    """Yield all results below a folder, in the order of their names."""
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}; run something first with `hashee study run --output {folder}`")
    for path in sorted(folder.glob("*/*-seed*.json")):
        yield read_result(path)
