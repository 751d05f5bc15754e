"""What an evaluation measures: quality, cost, speed, exits, and the examples it goes wrong on."""

from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from hashee.data.task import Task
from hashee.data.task_types import Agreement
from hashee.evaluation.predictions import Timing
from hashee.hf.explain import Explanation
from hashee.hf.flops import FlopCount

FORMAT = 2
"""Version of evaluation.json; in the first, `speedup` was the paper's count and `executed_speedup` the executed one."""


@dataclass(frozen=True)
class About:
    """What was evaluated."""

    source: str
    """Folder, or the class of a model that has none."""
    class_name: str
    backend: str
    quantize: str | None
    layers: int
    full_layers: int
    """Layers of the backbone that it was made from, at which full depth is counted."""
    table: dict[str, Any] | None
    """Method, parameters and fingerprint of the exit table; None for a dense model."""
    passes: float | None = None
    """Over the training examples, in all stages on the way to it; None where nobody knows."""


@dataclass(frozen=True)
class Example:
    """An example that the model gets wrong, or hardly right."""

    index: int
    """Its index in the split, from 0."""
    text: str
    """Both texts of a pair, one in a line each."""
    gold: str
    predicted: str
    """Both by name; of tags only those words that differ."""
    loss: float
    """Cross-entropy; for scores the absolute error."""
    confidence: float | None
    """Probability that the model gives to its prediction; None for scores."""
    right: bool | None = None
    """Whether the prediction is right; None for scores, which are more or less off."""


@dataclass(frozen=True)
class DenseModel:
    """The dense model on the same texts."""

    source: str
    layers: int
    quality: dict[str, float] | None
    macs_per_text: float
    timing: Timing | None
    agreement: Agreement
    passes: float | None = None
    """Over the training examples; None where nobody knows."""
    given: bool = False
    """Whether it was named by the user and is none of the fit's own, so that nothing is known of its training."""


@dataclass(frozen=True)
class Provenance:
    """What the numbers were taken with."""

    data_fingerprint: str
    data_notes: tuple[str, ...]
    fitted_on: str | None
    """Fingerprint of the data that the model was fitted to, if its folder says so."""
    machine: dict[str, Any]
    """Processor, threads, versions, commit and date."""


@dataclass(frozen=True)
class Measurements:
    """What was measured of a model on one split of a task."""

    model: About
    task: Task
    split: str
    quality: dict[str, float] | None
    """All parts of the task's metric and `score`; None where the labels are not known."""
    cost: FlopCount
    timing: Timing | None
    peak_memory_mb: float
    """Most resident memory of this process up to the end of the model's own pass, in 10^6 bytes."""
    worst: tuple[Example, ...]
    """Errors, the most confident first; if they are too few, then right predictions, the largest loss first."""
    dense: DenseModel | None
    elue: float | None
    """By how many percent the model lies above ElasticBERT at the same FLOPs, where that curve is known."""
    explanations: tuple[Explanation, ...]
    provenance: Provenance
    submission: str | None = None

    @property
    def score(self) -> float | None:
        """The task's metric."""
        return None if self.quality is None else self.quality["score"]

    @property
    def quality_kept(self) -> float | None:
        """Score / the dense model's score, if that had equal passes or is one that the user chose to compare with."""
        if self.quality is None or self.dense is None or not self.dense.quality or not self.dense.quality["score"]:
            return None
        return None if self.quality_kept_reason else self.quality["score"] / self.dense.quality["score"]

    @property
    def equal_passes(self) -> bool | None:
        """Whether the dense model had as many passes over the training examples; None where nobody knows."""
        if self.dense is None or self.model.passes is None or self.dense.passes is None:
            return None
        return self.model.passes == self.dense.passes

    @property
    def quality_kept_reason(self) -> str | None:
        """Why both models have scores but no share of quality is kept; None where there is one."""
        if self.quality is None or self.dense is None or self.dense.quality is None or self.equal_passes:
            return None
        if self.model.passes is not None and self.dense.passes is not None:
            fewer = "fewer" if self.dense.passes < self.model.passes else "more"
            return (
                f"the dense model had {fewer} passes over the training examples, so the two do not compare; a fit with "
                f"--compare-dense makes them equal"
            )
        if self.dense.given:
            return None
        return (
            "how many passes over the training examples each model had is not known, so the two do not compare; a fit "
            "with --compare-dense makes them equal"
        )

    @property
    def measured_speedup(self) -> float | None:
        """Median seconds of the dense model / median seconds of the model, from interleaved rounds."""
        if self.timing is None or self.dense is None or self.dense.timing is None:
            return None
        return median(self.dense.timing.seconds) / median(self.timing.seconds)

    @property
    def measured_range(self) -> tuple[float, float] | None:
        """The least and the largest speed-up of a round."""
        if self.timing is None or self.dense is None or self.dense.timing is None:
            return None
        ratios = [dense / own for own, dense in zip(self.timing.seconds, self.dense.timing.seconds, strict=True)]
        return min(ratios), max(ratios)

    @property
    def macs_per_text(self) -> float:
        """Executed multiply-accumulates for a text, on average."""
        return self.cost.executed_macs / max(self.cost.texts, 1)

    @property
    def macs_saved(self) -> float | None:
        """Multiply-accumulates of the dense model / executed ones of the model."""
        return None if self.dense is None else self.dense.macs_per_text / max(self.macs_per_text, 1e-9)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values for JSON."""
        task = {"name": self.task.name, "kind": str(self.task.kind), "metric": self.task.metric}
        return {
            "format": FORMAT,
            "model": asdict(self.model),
            "task": task | {"labels": list(self.task.labels)},
            "split": self.split,
            "texts": self.cost.texts,
            "quality": self.quality,
            "quality_kept": self.quality_kept,
            "quality_kept_reason": self.quality_kept_reason,
            "equal_passes": self.equal_passes,
            "cost": self.cost.to_dict(),
            "macs_per_text": self.macs_per_text,
            "macs_saved": self.macs_saved,
            "timing": None if self.timing is None else self.timing.to_dict(),
            "measured_speedup": self.measured_speedup,
            "measured_range": None if self.measured_range is None else list(self.measured_range),
            "peak_memory_mb": self.peak_memory_mb,
            "elue": self.elue,
            "worst": [asdict(example) for example in self.worst],
            "dense": None if self.dense is None else _dense_to_dict(self.dense),
            "explanations": [each.to_dict() for each in self.explanations],
            "provenance": asdict(self.provenance) | {"data_notes": list(self.provenance.data_notes)},
            "submission": self.submission,
        }


def _dense_to_dict(dense: DenseModel) -> dict[str, Any]:
    return asdict(dense) | {"timing": None if dense.timing is None else dense.timing.to_dict()}
