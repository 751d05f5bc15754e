"""Times of methods side by side: the same test texts in the same batches, all methods in one process, in turns."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hashee.cost.machine import describe_machine, instruction_sets
from hashee.cost.macs import EncoderShape, dense_macs
from hashee.cost.rounds import alternate
from hashee.data import Task
from hashee.data.registry import registered
from hashee.data.splits import first_of_shuffled
from hashee.data.task_types import type_of
from hashee.data.tokenized import ExampleTokenizer, Tokenized
from hashee.errors import InputError
from hashee.families.adapters import adapter_for
from hashee.hf.opening import open_dense
from hashee.study.clocks import ClockRow, Clocks
from hashee.study.curves import nearest, variant_of
from hashee.study.data import study_data
from hashee.study.methods import METHODS
from hashee.study.paper import TASKS
from hashee.study.results import OperatingPoint, RunResult, read_results
from hashee.training.method import method_named
from hashee.training.processes import current_processes

__all__ = ["METHODS", "ClockSettings", "clock"]

TRANSFORMERS, DENSE = "transformers", "dense"
"""Baselines that are always timed: the same weights as users run them today, padded, and on the packed engine."""

Batches = Sequence[Sequence[int]]
"""Numbers of the texts of each batch."""
Report = Callable[[str, int, int], None]
"""Told what happens now, the steps done and the steps in all."""


@dataclass(frozen=True)
class ClockSettings:
    """What is timed, and how."""

    results: Path
    """Folder of result files, with the models that runs kept."""
    methods: tuple[str, ...]
    """Beside the dense baselines, which are always timed."""
    tasks: tuple[str, ...] = ("snli", "imdb")
    backbone: str = "minilm"
    seed: int = 0
    """Of the runs whose models are timed."""
    speedups: tuple[float, ...] = (3.0,)
    """Executed speed-ups; each method is timed at the operating points that are nearest to them."""
    batch_sizes: tuple[int, ...] = (1, 8, 32, 128)
    texts: int = 512
    """Of the test set, drawn with seed 0."""
    rounds: int = 5
    """Timed rounds, after one that warms up."""

    def __post_init__(self) -> None:
        for name, least in (
            ("rounds", self.rounds),
            ("texts", self.texts),
            ("batch size", min(self.batch_sizes, default=0)),
            ("speedup", min(self.speedups, default=0)),
        ):
            if least < 1:
                raise InputError(f"{name} is {least}; it must be at least 1")
        if max(self.batch_sizes) > self.texts:
            raise InputError(f"{self.texts} texts fill no batch of {max(self.batch_sizes)}; time more texts")
        for method in self.methods:
            if method != TRANSFORMERS:
                method_named(method)
        tasks = tuple(registered(task) or task for task in self.tasks)
        for task in tasks:
            if task not in TASKS:
                raise InputError(f"times are taken with texts of {', '.join(TASKS)}, not with {task!r}")
        object.__setattr__(self, "tasks", tuple(dict.fromkeys(tasks)))
        # What others are compared with is always there, and first.
        object.__setattr__(self, "methods", tuple(dict.fromkeys((TRANSFORMERS, DENSE, *self.methods))))
        object.__setattr__(self, "batch_sizes", tuple(sorted(set(self.batch_sizes))))
        object.__setattr__(self, "speedups", tuple(dict.fromkeys(self.speedups)))


@dataclass(frozen=True)
class Kept:
    """An operating point of a run whose model is there."""

    method: str
    point: OperatingPoint
    folder: Path
    """Of the model."""
    trained_on: tuple[Any, ...]
    """What models that are compared share: data and the length at which texts are cut."""
    asked: tuple[float, ...] = ()
    """Speed-ups that were asked for to which the point is the nearest."""

    @property
    def quality(self) -> float:
        """On test, or on dev without one."""
        return self.point.dev if self.point.test is None else self.point.test


@dataclass(frozen=True)
class TimedTexts:
    """Tokenized texts that all methods run, and the backbone that costs are relative to."""

    name: str
    tokenized: Tokenized
    shape: EncoderShape

    def batches(self, size: int) -> Batches:
        """Sort texts by length and cut them into batches."""
        order = np.argsort(self.tokenized.lengths, kind="stable").tolist()
        return [order[start : start + size] for start in range(0, len(order), size)]

    def full_depth(self, lengths: Any) -> int:
        """Count what texts of so many tokens cost in the whole backbone. lengths: (texts,)"""
        return dense_macs(self.shape, self.shape.layers, lengths)

    def padded_macs(self, batches: Batches) -> int:
        """Count what the whole backbone executes if every text is as long as the longest of its batch."""
        lengths = self.tokenized.lengths
        return self.full_depth(np.concatenate([np.full(len(rows), lengths[list(rows)].max()) for rows in batches]))


@dataclass(frozen=True)
class Entry:
    """A model that is timed, at its operating point."""

    kept: Kept
    run: Callable[[Mapping[str, Tensor]], Tensor]
    """From (batch, longest) tensors by name to logits (batch, labels)."""
    macs: Callable[[Batches], int]
    """Executed for all texts in such batches."""


@dataclass
class Steps:
    """Counts the steps of a measurement and reports each when it begins."""

    report: Report
    total: int
    done: int = 0

    def __call__(self, what: str) -> None:
        """Begin the next step."""
        self.report(what, self.done, self.total)
        self.done += 1


def clock(settings: ClockSettings, report: Report, skip: Callable[[str], None]) -> Iterator[Clocks]:
    """Time every method on every task; after each batch size, yield all that has been measured.

    skip: told in one line of each method that has no model to time.
    """
    results = list(read_results(settings.results))
    # What is missing is said before anything is measured.
    kept = {task: kept_points(settings, results, task, skip) for task in settings.tasks}
    steps = Steps(report, len(settings.batch_sizes) * (settings.rounds + 1) * sum(map(len, kept.values())))
    rows: list[ClockRow] = []
    about: dict[str, Any] = {}
    for task, points in kept.items():
        report(f"{task}: opening models", steps.done, steps.total)
        texts, entries = opened(settings, task, points)
        lengths = texts.tokenized.lengths
        about[texts.name] = {"texts": len(lengths), "tokens": float(lengths.mean()), "longest": int(lengths.max())}
        for size in settings.batch_sizes:
            rows += timed(texts, entries, size, settings.rounds, steps)
            yield Clocks(tuple(rows), machine(), protocol(settings) | {"lengths": dict(about)})


def timed(
    texts: TimedTexts, entries: Sequence[Entry], size: int, rounds: int, begin: Callable[[str], None]
) -> list[ClockRow]:
    """Time forward passes of all texts in batches of a size. begin: told whose turn it is, off the clock."""
    device = current_processes().device
    batches = texts.batches(size)
    inputs = [{name: tensor.to(device) for name, tensor in texts.tokenized.inputs(rows).items()} for rows in batches]
    runs = [partial(run_batches, entry.run, inputs) for entry in entries]
    turns = [f"{texts.name}, batch {size}: {entry.kept.method}" for entry in entries]
    alternate(runs, 1, lambda index: begin(turns[index]))  # warms up
    seconds = alternate(runs, rounds, lambda index: begin(turns[index]))
    number, full_depth = len(texts.tokenized), texts.full_depth(texts.tokenized.lengths)
    return [
        ClockRow(
            method=entry.kept.method,
            texts=texts.name,
            batch=size,
            seconds_per_text=tuple(second / number for second in own),
            speedup=full_depth / entry.macs(batches),
            quality=entry.kept.quality,
            knob=entry.kept.point.knob,
            candidate=entry.kept.point.candidate,
            asked_speedups=entry.kept.asked,
        )
        for entry, own in zip(entries, seconds, strict=True)
    ]


@torch.inference_mode()
def run_batches(run: Callable[[Mapping[str, Tensor]], Tensor], batches: Sequence[Mapping[str, Tensor]]) -> list[Tensor]:
    """Return the logits of each batch, which are there when they are in memory, whatever device they come from."""
    return [run(inputs).cpu() for inputs in batches]


def kept_points(
    settings: ClockSettings, results: Sequence[RunResult], task: str, skip: Callable[[str], None]
) -> list[Kept]:
    """Return each method's operating points; methods without models are skipped, but for the dense baseline."""
    dense = _points_of(settings, results, DENSE, task)
    found = []
    for method in settings.methods:
        try:
            # transformers runs the weights of the dense method.
            points = dense if method == TRANSFORMERS else _points_of(settings, results, method, task)
            if any(kept.trained_on != dense[0].trained_on for kept in points):
                raise InputError(f"it was not trained on the same texts as {DENSE}, or at another length")
        except InputError as error:
            if method == DENSE:
                raise
            skip(f"skipped {method} on {task}: {error}")
        else:
            found += [replace(kept, method=method) for kept in points]
    return found


def _points_of(settings: ClockSettings, results: Sequence[RunResult], method: str, task: str) -> list[Kept]:
    """Return a method's operating points for all speed-ups that are asked for, each once."""
    runs = kept_runs(settings, results, method, task)
    found: dict[tuple[Path, float], Kept] = {}
    for speedup in settings.speedups:
        kept = kept_point(settings, runs, speedup)
        known = found.setdefault((kept.folder, kept.point.knob), kept)
        found[kept.folder, kept.point.knob] = replace(known, asked=(*known.asked, speedup))
    return list(found.values())


def kept_runs(settings: ClockSettings, results: Sequence[RunResult], method: str, task: str) -> list[RunResult]:
    """Return the runs of a method whose models were kept, of which there must be one."""
    asked = (method, task, settings.backbone, settings.seed)
    runs = [run for run in results if (run.method, run.task, run.backbone, run.seed) == asked]
    refusals = [run.not_applicable for run in runs if run.not_applicable is not None]
    if refusals:
        raise InputError(refusals[0])
    runs = [run for run in runs if run.curve and _is_whole(run) and run.has_models(settings.results)]
    if not runs:
        raise InputError(
            f"there are no models of {method} on {task} below {settings.results}; run `hashee study run --task {task} "
            f"--method {method} --backbone {settings.backbone} --output {settings.results} --keep-models`"
        )
    return runs


def kept_point(settings: ClockSettings, runs: Sequence[RunResult], speedup: float) -> Kept:
    """Return the operating point of a method's runs that is nearest to a speed-up."""
    points = [(nearest(run.curve, speedup), run) for run in runs]
    point, run = min(points, key=lambda pair: abs(math.log(pair[0].speedup / speedup)))
    trained_on = (run.data.get("fingerprint"), run.settings.get("max_length"))
    return Kept(run.method, point, settings.results / run.work / point.model, trained_on)


def _is_whole(run: RunResult) -> bool:
    """Whether a run is of the whole backbone with the tables of the paper."""
    variant = variant_of(run)
    return variant.depth == variant.buckets == variant.layers


def opened(settings: ClockSettings, task: str, points: Sequence[Kept]) -> tuple[TimedTexts, list[Entry]]:
    """Open the models of a task and tokenize its texts, as the dense model's tokenizer does."""
    data, processes = study_data(task), current_processes()
    dense = next(kept for kept in points if kept.method == DENSE)
    packed = method_named(DENSE).open(dense.folder)
    adapter = adapter_for(packed.config)
    examples = data.dev if data.test is None else data.test
    if len(examples) < max(settings.batch_sizes):
        raise InputError(f"{task} has {len(examples)} test texts, which fill no batch of {max(settings.batch_sizes)}")
    longest = min(packed.tokenizer.model_max_length, adapter.max_length(packed.config))
    tokenize = ExampleTokenizer(data.task, packed.tokenizer, longest, adapter.token_types)
    tokenized = tokenize(first_of_shuffled(examples, settings.texts, seed=0))
    texts = TimedTexts(TASKS[task], tokenized, adapter.shape(packed.config))
    entries = []
    models: dict[tuple[str, Path], Any] = {}
    for kept in points:
        if kept.method == TRANSFORMERS:
            padded = padded_model(packed, kept.folder, data.task).to(processes.device)
            entries.append(Entry(kept, partial(_logits, padded), texts.padded_macs))
        else:
            # A model whose operating points are thresholds is opened once for all of them.
            own = kept.method, kept.folder
            models[own] = models.get(own) or method_named(kept.method).open(kept.folder).to(processes.device)
            entries.append(_entry(kept, models[own], tokenized))
    return texts, entries


def _entry(kept: Kept, model: Any, tokenized: Tokenized) -> Entry:
    """Count what the texts cost at a model's operating point."""
    method, processes = method_named(kept.method), current_processes()
    executed = int(method.predict(model, tokenized, processes, kept.point.knob).costs.executed.sum())
    return Entry(kept, partial(method.run, model, knob=kept.point.knob), lambda batches: executed)


def padded_model(packed: Any, folder: Path, task: Task) -> Any:
    """Return the weights of a dense model on the packed engine in transformers' own class, which pads.

    packed: the model in the folder.
    """
    own = {"hashee", "auto_map", "architectures", "model_type"}
    fields = {name: value for name, value in packed.config.to_dict().items() if name not in own}
    config = packed.dense_class.config_class.from_dict(fields)
    return open_dense(str(folder), type_of(task).head, config=config).eval()


def _logits(model: Any, inputs: Mapping[str, Tensor]) -> Tensor:
    logits: Tensor = model(**inputs).logits
    return logits


def machine() -> dict[str, Any]:
    """Return what the times depend on: processor, instruction sets, threads, versions and device."""
    found = describe_machine(torch.get_num_threads())
    return {"cpu": found.pop("cpu"), "instruction_sets": instruction_sets()} | found | {"device": _device_name()}


def _device_name() -> str:
    device = current_processes().device
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def protocol(settings: ClockSettings) -> dict[str, Any]:
    """Return how times are taken, as JSON values."""
    return {
        "backbone": settings.backbone,
        "seed": settings.seed,
        "asked_speedups": list(settings.speedups),
        "rounds": settings.rounds,
        "warm_up_rounds": 1,
        "order": "sorted by length",
        "dtype": "float32",
    }
