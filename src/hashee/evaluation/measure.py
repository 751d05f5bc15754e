"""`hashee.evaluate`: a model, a split, one page of numbers."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hashee.cost.machine import describe_machine, peak_memory_mb
from hashee.cost.threads import torch_threads, usable_cores
from hashee.data.elue import ELASTICBERT, elue_score, mflops_per_text
from hashee.data.loading import load_task
from hashee.data.predictions import predictions, scores
from hashee.data.run_record import DENSE, RunRecord, read_run
from hashee.data.submission import write_submission
from hashee.data.task import Examples, Task, TaskData
from hashee.data.task_types import type_of
from hashee.errors import InputError
from hashee.evaluation.evaluation import Evaluation
from hashee.evaluation.measurements import About, DenseModel, Example, Provenance
from hashee.evaluation.opening import Array, Opened, open_model, open_reference
from hashee.evaluation.predictions import predict_logits, spread, time_rounds
from hashee.evaluation.settings import AUTO, EvaluateSettings
from hashee.hf.explain import Explanation
from hashee.hf.flops import FlopCount, count_flops
from hashee.hf.pretrained import quiet_transformers

_LONGEST_SHOWN = 48
"""Tokens of a text that is shown with its exits, at the most, if the split has such."""


@dataclass(frozen=True)
class _Predicted:
    """A model with its predictions for the split."""

    opened: Opened
    logits: list[Array]
    predictions: list[Any]
    quality: dict[str, float] | None
    cost: FlopCount

    @property
    def macs_per_text(self) -> float:
        return self.cost.executed_macs / max(self.cost.texts, 1)


@dataclass(frozen=True)
class _Reference:
    """A dense model to compare with."""

    source: str
    passes: float | None = None
    """Over the training examples; None where nobody knows."""
    given: bool = False
    """Whether the user named it and it is none of the fit's own."""


def evaluate(
    model: Any,
    data: TaskData | str | Path,
    split: str | None = None,
    settings: EvaluateSettings | None = None,
    *,
    tokenizer: Any = None,
    **changes: Any,
) -> Evaluation:
    """Measure quality, cost and speed of a model on a split of a task.

    model: a folder, or a converted, exported or dense model with a head for the task. data: a task with its examples,
    or what `load_task` takes. split: dev or test; by default test, or dev if test has no labels to compare with.
    settings, changes: the fields of `EvaluateSettings`.
    """
    settings = _complete(settings, changes | ({} if split is None else {"split": split}))
    data = data if isinstance(data, TaskData) else load_task(data)
    if type_of(data.task).writes_text:
        raise InputError(
            f"{data.task.name} is {data.task.kind}, which hashee evaluate does not judge; run.json of a fit has its "
            f"metrics and costs, and hashee summarize writes the texts"
        )
    split, why = split_of(data, settings)
    examples = examples_of(data, replace(settings, split=split))
    with quiet_transformers(), torch_threads(settings.threads):
        opened = open_model(model, data.task, settings, tokenizer)
        run = read_run(opened.source)
        max_length = settings.max_length or (None if run is None else run.settings.get("max_length"))
        full_layers = _full_layers(opened, run)
        predicted = _predicted(opened.cut_at(max_length), examples, full_layers, not settings.quiet)
        memory = peak_memory_mb()
        submission = _submission(data.task, predicted.predictions, settings)
        reference = _reference(settings, opened, run)
        dense = None
        if reference is not None:
            other = open_reference(reference.source, data.task, settings, getattr(opened.model, "device", "cpu"))
            dense = _predicted(other.cut_at(max_length), examples, other.layers, not settings.quiet)
        models = [each.opened for each in (predicted, dense) if each is not None]
        timings = time_rounds(models, examples, settings.rounds, settings.timed_texts) if settings.rounds else []
        provenance = _provenance(data, run, opened, settings)
    return Evaluation(
        model=_about(opened, settings, full_layers, run),
        task=data.task,
        split=split,
        quality=predicted.quality,
        cost=predicted.cost,
        timing=timings[0] if timings else None,
        peak_memory_mb=memory,
        worst=worst_examples(data.task, examples, predicted, settings.worst),
        dense=None
        if dense is None or reference is None
        else DenseModel(
            source=dense.opened.source,
            layers=dense.opened.layers,
            quality=dense.quality,
            macs_per_text=dense.macs_per_text,
            timing=timings[1] if timings else None,
            agreement=type_of(data.task).agreement(predicted.predictions, dense.predictions),
            passes=reference.passes,
            given=reference.given,
        ),
        elue=_elue(data.task, split, predicted),
        explanations=_explanations(predicted.opened, examples, settings.sentences),
        provenance=replace(provenance, data_notes=(*why, *provenance.data_notes)),
        submission=submission,
    )


def _complete(settings: EvaluateSettings | None, changes: dict[str, Any]) -> EvaluateSettings:
    known = [field.name for field in fields(EvaluateSettings)]
    for name in changes:
        if name not in known:
            raise InputError(f"there is no setting {name!r}; the settings are {', '.join(known)}")
    return replace(settings or EvaluateSettings(), **changes)


def split_of(data: TaskData, settings: EvaluateSettings) -> tuple[str, tuple[str, ...]]:
    """Return the split that is evaluated, and the reason if it is dev without having been chosen."""
    if settings.split is not None:
        return settings.split, ()
    if data.test is None or not len(data.test):
        missing = f"{data.task.name} has no test split"
    elif data.test.targets is None and settings.submission is None:
        missing = f"the labels of {data.task.name}'s test split are not known"
    else:
        return "test", ()
    return "dev", (f"{missing}, so this is dev; a model that was chosen by dev looks a little better there",)


def examples_of(data: TaskData, settings: EvaluateSettings) -> Examples:
    """Return the examples of the split, or say why there is nothing to evaluate."""
    split, name = settings.split, data.task.name
    examples = data.dev if split == "dev" else data.test
    if examples is None or not len(examples):
        raise InputError(
            f"{name} has no examples in {split}; choose the other split, or name a file with "
            f"{split}=... (--{split} FILE)"
        )
    if examples.targets is None and settings.submission is None:
        raise InputError(
            f"the labels of {name}'s {split} split are not known (leaderboards keep them back); write the "
            f"model's predictions with submission=... (--submission FILE), or evaluate on dev"
        )
    return examples


def _predicted(opened: Opened, examples: Examples, full_layers: int, progress: bool) -> _Predicted:
    """Let a model predict all examples; this also warms it up."""
    cost = _cost(opened, examples, full_layers)
    logits = predict_logits(opened, examples, progress)
    found = predictions(opened.task, logits)
    quality = None
    if examples.targets is not None:
        quality = scores(opened.task, logits, examples.targets)
    return _Predicted(opened, logits, found, quality, cost)


def _cost(opened: Opened, examples: Examples, full_layers: int) -> FlopCount:
    """Count what the split costs; full depth is that of the whole backbone."""
    ids = [row.tolist() for row in opened.encoder(examples).ids]
    config = copy.deepcopy(opened.config)
    config.num_hidden_layers = full_layers
    if opened.table is not None:
        return count_flops(config, ids, opened.table, reads_first_row=opened.reads_first_row)
    cost = count_flops(config, ids)
    # transformers runs every layer for every token, whatever is read of the last one.
    return replace(cost, executed_macs=cost.full_depth_macs)


def _full_layers(opened: Opened, run: RunRecord | None) -> int:
    fitted = 0 if run is None else run.backbone.layers
    converted = (getattr(opened.config, "hashee", None) or {}).get("source_layers", 0)
    return max(opened.layers, int(converted), int(fitted))


def _reference(settings: EvaluateSettings, opened: Opened, run: RunRecord | None) -> _Reference | None:
    """Return the dense model to compare with, if one was named or a fit left one, first of all one of equal passes."""
    left = _left_by_fit(Path(opened.source), run)
    if settings.dense is None or (settings.dense == AUTO and opened.table is None):
        return None
    if settings.dense == AUTO:
        return next((each for each in left if (Path(each.source) / "config.json").is_file()), None)
    named = Path(settings.dense).resolve()
    own = (replace(each, source=settings.dense) for each in left if Path(each.source).resolve() == named)
    return next(own, _Reference(settings.dense, given=True))


def _left_by_fit(folder: Path, run: RunRecord | None) -> list[_Reference]:
    """List where a fit may have left dense models; those of a folder that was moved are still in it."""
    records = () if run is None else (run.dense_equal, run.dense)
    left = [
        _Reference(str(source), record.passes)
        for record in records
        if record is not None and record.folder
        for source in (folder / Path(record.folder).name, Path(record.folder))
    ]
    return [*left, _Reference(str(folder / DENSE))]


def worst_examples(task: Task, examples: Examples, predicted: _Predicted, count: int) -> tuple[Example, ...]:
    """Return errors, the most confident first, and if they are too few, right predictions with the largest loss.

    Scores, which have no confidence, come by their error; predictions of several labels or tags by their loss.
    """
    if examples.targets is None or not count:
        return ()
    task_type = type_of(task)
    off = [task_type.example_loss(*pair) for pair in zip(predicted.logits, examples.targets, strict=True)]
    pairs = zip(predicted.predictions, examples.targets, strict=True)
    right = [_is_right(*pair) if task_type.right_or_wrong else None for pair in pairs]
    certain = [task_type.confidence(row) for row in predicted.logits]

    def how_bad(index: int) -> tuple[bool, float, float]:
        by_confidence = task_type.one_decision and not right[index]
        return right[index] is True, -(certain[index] or 0.0) if by_confidence else -off[index], -off[index]

    shown = []
    for index in sorted(range(len(off)), key=how_bad)[:count]:
        names = task_type.names(task, examples.texts[index], examples.targets[index], predicted.predictions[index])
        text = shown_text(task, examples.texts[index])
        shown.append(Example(index, text, *names, off[index], certain[index], right[index]))
    return tuple(shown)


def _is_right(prediction: Any, target: Any) -> bool:
    return np.array_equal(np.asarray(prediction), np.asarray(target))


def shown_text(task: Task, text: Any) -> str:
    """Return an example as one string: words with spaces between them, the texts of a pair in a line each."""
    if isinstance(text, str):
        return text
    return ("\n" if task.pair and not type_of(task).tags_words else " ").join(text)


def _explanations(opened: Opened, examples: Examples, count: int) -> tuple[Explanation, ...]:
    """Explain some texts that are spread over the split and short enough to read."""
    if opened.table is None or not count:
        return ()
    # Ten times as many as are shown are enough to find short ones among.
    indices = spread(range(len(examples)), 10 * count)
    encoded = opened.encoder(Examples([examples.texts[index] for index in indices], None))
    short = [number for number, row in enumerate(encoded.ids) if len(row) <= _LONGEST_SHOWN]
    chosen = spread(short if len(short) >= count else range(len(indices)), count)
    return tuple(
        _explanation(opened, shown_text(opened.task, examples.texts[indices[number]]), encoded.ids[number].tolist())
        for number in chosen
    )


def _explanation(opened: Opened, text: str, ids: list[int]) -> Explanation:
    """Explain a text from its token ids, cut as they are run."""
    assert opened.table is not None
    return Explanation(
        text=text,
        tokens=tuple(opened.tokenizer.convert_ids_to_tokens(ids)),
        token_ids=tuple(ids),
        exit_layers=tuple(opened.table.exit_layers[ids].tolist()),
        num_layers=opened.table.num_layers,
        cost=count_flops(opened.config, [ids], opened.table, reads_first_row=opened.reads_first_row),
    )


def _elue(task: Task, split: str, predicted: _Predicted) -> float | None:
    """Place the model on ElasticBERT's curve, which is for the test split of some tasks."""
    if task.name not in ELASTICBERT or split != "test" or predicted.quality is None:
        return None
    cost = mflops_per_text(predicted.cost.paper_macs, predicted.cost.texts)
    return elue_score([(cost, 100 * predicted.quality["score"])], task=task.name)


def _about(opened: Opened, settings: EvaluateSettings, full_layers: int, run: RunRecord | None) -> About:
    table = None
    if opened.table is not None:
        metadata = opened.table.metadata()
        table = {name: metadata[name] for name in ("method", "num_layers", "parameters", "fingerprint")}
    return About(
        source=opened.source,
        class_name=type(opened.model).__name__,
        backend=opened.backend,
        quantize=settings.quantize,
        layers=opened.layers,
        full_layers=full_layers,
        table=table,
        passes=None if run is None else run.passes,
    )


def _provenance(data: TaskData, run: RunRecord | None, opened: Opened, settings: EvaluateSettings) -> Provenance:
    own = torch.get_num_threads() if opened.backend == "torch" else usable_cores()
    fitted_on = None if run is None else run.data.fingerprint
    return Provenance(data.fingerprint, data.notes, fitted_on, describe_machine(settings.threads or own))


def _submission(task: Task, found: Sequence[Any], settings: EvaluateSettings) -> str | None:
    return None if settings.submission is None else str(write_submission(settings.submission, task, found))
