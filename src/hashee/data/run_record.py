"""What `run.json` says of a fit, typed; training writes it, evaluation reads it."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from hashee.data.task import Recipe

RUN = "run.json"
DENSE, DENSE_EQUAL = "dense", "dense-equal"
"""Folders in that of a fit: the dense model that others start from, and one that had as many passes as they in all."""
Metrics = dict[str, dict[str, float] | None]
"""By split, dev and test, all metrics by name, `score` among them; None for a split without labels."""

PARTS = ("encoder", "decoder", "total")
"""Of a model that writes text."""

T = TypeVar("T")


@dataclass(frozen=True)
class TaskRecord:
    """The task that was learnt."""

    name: str = ""
    kind: str = ""
    metric: str = ""
    labels: int = 0


@dataclass(frozen=True)
class DataRecord:
    """The data that it was learnt from."""

    fingerprint: str | None = None
    notes: list[str] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    """Examples by split."""


@dataclass(frozen=True)
class BackboneRecord:
    """The model that the fit started from."""

    name: str = ""
    layers: int = 0
    depth: int = 0
    """Layers that were kept."""


@dataclass(frozen=True)
class TableRecord:
    """The exit table."""

    method: str = ""
    num_layers: int = 0
    parameters: dict[str, Any] = field(default_factory=dict)
    fingerprint: str = ""


@dataclass(frozen=True)
class TrainingRecord:
    """How one training went."""

    fingerprint: str = ""
    dev: dict[str, float] = field(default_factory=dict)
    best_step: int = 0
    steps: int = 0
    seconds: float = 0.0


def _known_passes(passes: float | None) -> dict[str, float]:
    """Return the entry of passes; older files have none, nor do models that were given."""
    return {} if passes is None else {"passes": passes}


@dataclass(frozen=True)
class CandidateRecord:
    """A model that was fitted, whether it was kept or not."""

    hash: str
    training: TrainingRecord
    passes: float | None = None
    """Over the training examples, in all stages on the way to it; None if it started from a model that was given."""

    def to_dict(self) -> dict[str, Any]:
        """Return the candidate as JSON values."""
        return {"hash": self.hash} | asdict(self.training) | _known_passes(self.passes)


@dataclass(frozen=True)
class DenseRecord:
    """The dense model."""

    folder: str
    layers: int
    training: TrainingRecord | None
    """None if it was given."""
    metrics: Metrics
    passes: float | None = None
    """Over the training examples; None if it was given, and nobody knows."""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "DenseRecord":
        """Read a dense model; what an older file does not say has its default."""
        training = _part(TrainingRecord, values) if "steps" in values else None
        metrics = values.get("metrics", {"dev": None, "test": None})
        return cls(values.get("folder", ""), values.get("layers", 0), training, metrics, values.get("passes"))

    def to_dict(self) -> dict[str, Any]:
        """Return the dense model as JSON values."""
        training = {} if self.training is None else asdict(self.training)
        own = {"folder": self.folder, "layers": self.layers}
        return own | training | {"metrics": self.metrics} | _known_passes(self.passes)


@dataclass(frozen=True)
class PartRecord:
    """What one part of a model that writes text costs, per text, for the lengths that it wrote."""

    dense_per_text: float = 0.0
    """Of the whole backbone, for the same texts."""
    paper_per_text: float = 0.0
    executed_per_text: float = 0.0
    speedup: float = 0.0
    """As executed."""
    paper_speedup: float = 0.0
    seconds: float = 0.0
    """That this part ran, for all texts."""


@dataclass(frozen=True)
class MacsRecord:
    """Multiply-accumulates that the texts of a split cost, per text."""

    split: str = ""
    texts: int = 0
    tokens: int = 0
    dense_per_text: float = 0.0
    """Of the whole backbone."""
    paper_per_text: float = 0.0
    executed_per_text: float = 0.0
    speedup: float = 0.0
    """As executed."""
    paper_speedup: float = 0.0
    speedup_vs_bert_base: float = 0.0
    """Both by the paper's count."""
    encoder: PartRecord | None = None
    decoder: PartRecord | None = None
    total: PartRecord | None = None
    """Of models that write text; as in the paper without the scores of the vocabulary."""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "MacsRecord":
        """Read the counts, also of files in which `speedup` was by the paper's count, beside `executed_speedup`."""
        if "executed_speedup" in values:
            former = {"speedup": values["executed_speedup"], "paper_speedup": values.get("speedup", 0.0)}
            values = dict(values) | former
        parts = {name: _part(PartRecord, values[name]) for name in PARTS if values.get(name) is not None}
        return _part(cls, dict(values) | parts)

    def to_dict(self) -> dict[str, Any]:
        """Return the counts as JSON values; parts are of models that write text."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class Seconds:
    """How long the parts of a fit took."""

    dense: float = 0.0
    tables: float = 0.0
    hashed: float = 0.0
    evaluation: float = 0.0
    total: float = 0.0


@dataclass(frozen=True, eq=False)
class RunRecord(Mapping[str, Any]):
    """A finished fit. As a mapping it reads like the JSON of `run.json`: `run["metrics"]["dev"]["score"]`."""

    settings: dict[str, Any]
    task: TaskRecord = field(default_factory=TaskRecord)
    data: DataRecord = field(default_factory=DataRecord)
    backbone: BackboneRecord = field(default_factory=BackboneRecord)
    recipe: Recipe = field(default_factory=Recipe)
    versions: dict[str, str] = field(default_factory=dict)
    hardware: dict[str, Any] = field(default_factory=dict)
    table: TableRecord = field(default_factory=TableRecord)
    metrics: Metrics = field(default_factory=lambda: {"dev": None, "test": None})
    dense: DenseRecord | None = None
    dense_equal: DenseRecord | None = None
    """A dense model with as many passes as the model that was kept, if one was asked for."""
    candidates: list[CandidateRecord] = field(default_factory=list)
    macs: MacsRecord = field(default_factory=MacsRecord)
    passes: float | None = None
    """Over the training examples, in all stages on the way to the model that was kept."""
    history: list[dict[str, float]] = field(default_factory=list)
    """Loss and dev score by step."""
    search: dict[str, Any] | None = None
    """Grid and trials, if hyper-parameters were searched."""
    seconds: Seconds = field(default_factory=Seconds)
    best_seed: int | None = None
    seeds: list[dict[str, Any]] | None = None
    """Seed and metrics of each fit, if there were several."""
    summary: dict[str, Any] | None = None
    """Mean and standard deviation over the seeds, by split."""
    more: dict[str, Any] = field(default_factory=dict)
    """What else the file says."""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "RunRecord":
        """Read a record; what an older file does not say has its default."""
        if isinstance(values, RunRecord):
            return values
        known = {name: value for name, value in values.items() if name in _ORDER}
        for name, part in _PARTS.items():
            if name in known:
                known[name] = MacsRecord.from_dict(known[name]) if part is MacsRecord else _part(part, known[name])
        for name in ("dense", "dense_equal"):
            if known.get(name) is not None:
                known[name] = DenseRecord.from_dict(known[name])
        known["candidates"] = [
            CandidateRecord(each.get("hash", ""), _part(TrainingRecord, each), each.get("passes"))
            for each in known.get("candidates", ())
        ]
        return cls(**known, more={name: value for name, value in values.items() if name not in _ORDER})

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON values of `run.json`."""
        values: dict[str, Any] = {}
        for name in _ORDER:
            value = getattr(self, name)
            if isinstance(value, MacsRecord):
                values[name] = value.to_dict()
            elif name in _PARTS:
                values[name] = asdict(value)
            elif name == "dense":
                values[name] = None if value is None else value.to_dict()
            elif name == "candidates":
                values[name] = [each.to_dict() for each in value]
            elif value is not None:
                values[name] = value.to_dict() if isinstance(value, DenseRecord) else value
        return values | self.more

    def __getitem__(self, name: str) -> Any:
        return self.to_dict()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.to_dict())

    def __len__(self) -> int:
        return len(self.to_dict())


_PARTS: dict[str, type] = {
    "task": TaskRecord,
    "data": DataRecord,
    "backbone": BackboneRecord,
    "recipe": Recipe,
    "table": TableRecord,
    "macs": MacsRecord,
    "seconds": Seconds,
}
_ORDER = (
    *("task", "data", "backbone", "settings", "recipe", "versions", "hardware", "table", "metrics", "dense"),
    *("dense_equal", "candidates", "macs", "passes", "history", "search", "seconds", "best_seed", "seeds", "summary"),
)
"""Entries of the file, as they come in it."""


def _part(record: type[T], values: Mapping[str, Any]) -> T:
    names = {each.name for each in fields(record)}  # type: ignore[arg-type]
    return record(**{name: value for name, value in values.items() if name in names})


def dev_score(metrics: Metrics) -> float:
    """Return the score on dev that models are chosen by."""
    dev = metrics["dev"]
    assert dev is not None  # a fit has labelled dev examples
    return dev["score"]


def counted_passes(passes: float | None) -> str:
    """Return a number of passes with its noun."""
    return "unknown passes" if passes is None else f"{passes:g} pass{'' if passes == 1 else 'es'}"


def read_run(folder: str | Path) -> RunRecord | None:
    """Return what the run.json of a fitted folder says, or None if there is none that can be read."""
    try:
        values = json.loads((Path(folder) / RUN).read_text(encoding="utf-8"))
        return RunRecord.from_dict(values) if isinstance(values, dict) and "settings" in values else None
    except (OSError, ValueError, TypeError, AttributeError):
        return None
