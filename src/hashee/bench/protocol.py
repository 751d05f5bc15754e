"""What is measured and what comes out: a benchmark, the timings of a baseline, and a row of the result."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from hashee.errors import InputError

BATCH_SIZES = (1, 8, 32, 128)
Report = Callable[[str, int, int], None]
"""Told what happens now, the steps done and the steps in all."""


@dataclass(frozen=True)
class Benchmark:
    """One run of the protocol: every baseline runs the same texts in interleaved rounds."""

    workload: str = "SST-2"
    model: str = "bert-base"
    batch_sizes: tuple[int, ...] = BATCH_SIZES
    texts: int | None = None
    """Texts per round; default: what the workload says. Always whole batches."""
    rounds: int = 5
    """Timed rounds, after one untimed round that warms up."""
    threads: int = 1
    seed: int = 0
    """Decides which texts are drawn, their arrival order, and the order of the baselines in each round."""
    baselines: tuple[str, ...] = ()
    """Names of the baselines to run; none: all that apply to the model."""
    training: bool = False
    """Time forward and backward passes in place of inference."""
    budget_seconds: float | None = None
    """Start no further round that would end later than this after the start; one round is always timed."""

    def __post_init__(self) -> None:
        numbers = {"rounds": self.rounds, "threads": self.threads, "texts": 1 if self.texts is None else self.texts}
        numbers |= {f"batch size {number}": size for number, size in enumerate(self.batch_sizes, start=1)}
        for name, value in numbers.items():
            if value < 1:
                raise InputError(f"{name} is {value}; it must be at least 1")
        if not self.batch_sizes:
            raise InputError("there is no batch size to measure; give at least one")


@dataclass(frozen=True)
class ClockJob:
    """What a worker is told about its work; crosses the process boundary as JSON."""

    baseline: str
    depth: int
    order: str
    """`sorted` by length, or `arrival`."""
    batch_size: int
    threads: int
    texts: str
    """JSON file of the token ids and types of the texts, in arrival order."""
    model: str
    """Folder of the dense model's weights, of which the first `depth` layers run."""
    table: str
    """Folder of the exit table."""
    artifacts: str
    """Folder for what is made once and shared by workers, such as exported graphs."""
    modules: tuple[str, ...] = ()
    """Modules that register further baselines."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "ClockJob":
        """Put a job together again on the other side."""
        return cls(**(dict(fields) | {"modules": tuple(fields["modules"])}))

    def artifact(self, name: str) -> Path:
        """Return where a shared file of this model at this depth lies."""
        return Path(self.artifacts) / f"{name}-{self.depth}"


@dataclass(frozen=True)
class Row:
    """The result of one baseline at one batch size; the fields are the keys of the JSON report."""

    name: str
    texts_per_second: float | None = None
    """Texts / median seconds of a round."""
    ratio: float | None = None
    """`texts_per_second` against transformers at the model's full depth, length-sorted, in the same run."""
    executed_gflops: float | None = None
    """Executed FLOPs per second, in GFLOP/s: two for each multiply-accumulate that runs, padding included."""
    utilisation: float | None = None
    """`executed_gflops` / `sgemm_gflops`; for int8 baselines too it is the float32 peak that divides."""
    peak_memory_mb: float | None = None
    """Most resident memory of the baseline's process so far, weights and libraries included, in 10^6 bytes."""
    executed_flops_per_text: float | None = None
    median_seconds: float | None = None
    min_seconds: float | None = None
    max_seconds: float | None = None
    spread: float | None = None
    """(max - min) / median of the seconds."""
    ratio_min: float | None = None
    """Lowest ratio within one round; the rounds are interleaved, so each is a comparison of its own."""
    ratio_max: float | None = None
    tokens_per_second: float | None = None
    """Real tokens, padding not counted."""
    max_difference: float | None = None
    """Largest difference of an output from `compared_with`, on the texts of a few batches."""
    compared_with: str | None = None
    agreement: float | None = None
    """Of int8 baselines: mean cosine of real MiniLM's outputs with those of `agrees_with`, in float32."""
    agrees_with: str | None = None
    skipped: str | None = None
    """Why there are no numbers, if there are none."""
    workload: str = ""
    model: str = ""
    batch_size: int = 0
    depth: int = 0
    order: str = ""
    dtype: str = ""
    task: str = ""
    texts: int = 0
    tokens: int = 0
    rounds: int = 0
    threads: int = 0
    seconds: tuple[float, ...] = ()
    """Of every round, in the order in which they ran."""
    sgemm_gflops: float | None = None
    """Median over the run of a 2048 x 2048 x 2048 float32 matrix product."""
    note: str = ""
    """What else a reader must know, such as texts that stand in for others."""
    machine: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the row as JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class Timing:
    """What was measured of one baseline, before it is put in proportion."""

    seconds: tuple[float, ...]
    executed_macs: int
    """Multiply-accumulates of one round."""
    peak_memory_mb: float


def fill_row(row: Row, timing: Timing, sgemm_gflops: float) -> Row:
    """Put timings into a row that already says what ran."""
    middle = median(timing.seconds)
    gflops = 2 * timing.executed_macs / middle / 1e9
    return replace(
        row,
        texts_per_second=row.texts / middle,
        tokens_per_second=row.tokens / middle,
        executed_gflops=gflops,
        utilisation=gflops / sgemm_gflops,
        peak_memory_mb=timing.peak_memory_mb,
        executed_flops_per_text=2 * timing.executed_macs / row.texts,
        median_seconds=middle,
        min_seconds=min(timing.seconds),
        max_seconds=max(timing.seconds),
        spread=(max(timing.seconds) - min(timing.seconds)) / middle,
        seconds=timing.seconds,
        rounds=len(timing.seconds),
        sgemm_gflops=sgemm_gflops,
    )


def add_ratios(rows: Sequence[Row], reference: str) -> list[Row]:
    """Put every measured row in proportion to the reference of the same run, if that was measured."""
    found = next((row for row in rows if row.name == reference and row.seconds), None)
    if found is None or found.texts_per_second is None:
        return list(rows)
    return [_with_ratio(row, found, found.texts_per_second) for row in rows]


def _with_ratio(row: Row, reference: Row, rate: float) -> Row:
    if row.texts_per_second is None:
        return row
    ratios = [theirs / own for own, theirs in zip(row.seconds, reference.seconds, strict=False)]
    return replace(row, ratio=row.texts_per_second / rate, ratio_min=min(ratios), ratio_max=max(ratios))
