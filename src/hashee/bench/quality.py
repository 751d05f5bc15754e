"""What int8 costs in quality: how far the outputs of real MiniLM in int8 agree with those in float32.

Speed is measured on whatever model was asked for, whose weights may be random; agreement needs real ones. Its outputs
are random projections of the first token's state, so that many directions count, not two.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from transformers import AutoConfig

from hashee.bench.baselines import BASELINES, Baseline, Outputs
from hashee.bench.batches import draw
from hashee.bench.entries import Entry, Setup, load, warm_up
from hashee.bench.protocol import Benchmark, Report
from hashee.bench.workloads import Workload, save_minilm

OUTPUTS = 64
TEXTS = 64
BATCH_SIZE = 32


@dataclass(frozen=True)
class Agreement:
    """How far a baseline agrees with one in float32."""

    value: float
    """Mean cosine of the outputs of each text, both without their mean over all texts; 1: the same."""
    reference: str


@dataclass(frozen=True)
class QualityModel:
    """The model on which agreement is measured: its name, by which baselines apply to it, and how it is saved."""

    name: str
    save: Callable[[Path], None]


MINILM = QualityModel("minilm", partial(save_minilm, labels=OUTPUTS))


@dataclass(frozen=True)
class QualityRun:
    """What all baselines whose agreement is measured have in common."""

    benchmark: Benchmark
    workload: Workload
    folder: Path
    """For the model, its exported graphs and logs."""
    modules: tuple[str, ...] = ()
    """Those that register further baselines, for the workers."""
    model: QualityModel = MINILM

    def measure(self, baselines: Sequence[Baseline], report: Report) -> dict[str, Agreement]:
        """Return the agreement of each baseline that is not in float32; one that cannot run has none."""
        coarse = {each.name: other for each in baselines if (other := _reference_of(each, self.model.name))}
        if not coarse or self.benchmark.training:
            return {}
        report(f"saving {self.model.name}, for what int8 costs in quality", 0, 1)
        setup = self._setup()
        prepared: dict[str, str | None] = {}
        outputs: dict[str, Outputs | None] = {}
        found: dict[str, Agreement] = {}
        for name, reference in coarse.items():
            report(f"quality of {name}", 0, 1)
            for each in (reference, BASELINES[name]):
                if each.name not in outputs:
                    outputs[each.name] = _outputs(setup, each, prepared)
            ours, theirs = outputs[name], outputs[reference.name]
            if ours is not None and theirs is not None:
                found[name] = Agreement(agreement(ours, theirs), reference.name)
        return found

    def _setup(self) -> Setup:
        own = self.folder / "texts"
        own.mkdir(parents=True)
        self.model.save(self.folder / "model")
        self.workload.table.save(self.folder / "table")
        tokens = draw(self.workload.tokens, min(TEXTS, len(self.workload.tokens)), BATCH_SIZE, self.benchmark.seed)
        tokens.save(own / "texts.json")
        config = AutoConfig.from_pretrained(self.folder / "model")
        return Setup(self.benchmark, self.workload, config, BATCH_SIZE, tokens, own, self.modules)


def agreement(ours: Outputs, theirs: Outputs) -> float:
    """Return the mean cosine of the rows of two outputs without their column means. Both: (texts, outputs)."""
    one, other = (values - values.mean(axis=0) for values in (ours.astype(np.float64), theirs.astype(np.float64)))
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return float(((one * other).sum(axis=1) / np.maximum(lengths, 1e-12)).mean())


def _reference_of(baseline: Baseline, model: str) -> Baseline | None:
    """Return the float32 baseline that one in int8 is to agree with: the first of its group and depth."""
    if baseline.dtype == "float32" or baseline.output_group is None:
        return None
    if baseline.models is not None and model not in baseline.models:
        return None
    wanted = (baseline.output_group, baseline.depth, "float32", baseline.models)
    return next(
        (each for each in BASELINES.values() if (each.output_group, each.depth, each.dtype, each.models) == wanted),
        None,
    )


def _outputs(setup: Setup, baseline: Baseline, prepared: dict[str, str | None]) -> Outputs | None:
    """Return the outputs of a baseline for all texts, or None if it cannot run; its row says why."""
    entry = Entry(baseline)
    with ExitStack() as stack:
        if load(setup, entry, stack, prepared) is not None:
            return None
        warm_up(entry)
    return entry.outputs if entry.skipped is None else None
