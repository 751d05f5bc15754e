"""The end of a fit: the best candidate is measured on dev and test and written with everything that is known of it."""

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from hashee.data import Examples, TaskData
from hashee.data.predictions import scores
from hashee.data.run_record import (
    RUN,
    BackboneRecord,
    CandidateRecord,
    DataRecord,
    DenseRecord,
    Metrics,
    RunRecord,
    Seconds,
    TableRecord,
    TaskRecord,
    TrainingRecord,
    read_run,
)
from hashee.data.tokenized import Tokenized
from hashee.tables.table import ExitTable
from hashee.training.evaluation import logits_for
from hashee.training.json_files import json_text, write_json
from hashee.training.method import Array, Choice, Method
from hashee.training.model_card import model_card
from hashee.training.processes import Processes
from hashee.training.record import hardware, versions
from hashee.training.replacing import replaced_model
from hashee.training.resources import writing_to
from hashee.training.settings import FitSettings
from hashee.training.stage import RECORD, STARTED, StageRecord
from hashee.training.stages import WORK, Candidate, Dense, Fit

REPLACED = "replaced.json"
"""Where this is, in the work folder, `run.json` and model are of a run that is being replaced."""

Splits = dict[str, tuple[Tokenized, Examples]]
Predict = Callable[[Any, Tokenized, Processes], list[Array]]


def fit_once(settings: FitSettings, data: TaskData, processes: Processes, method: Method) -> RunRecord:
    """Fit one model into the output folder, unless it is finished there, and return what `run.json` holds."""
    done = processes.main_only(lambda: finished_run(settings, data))
    if done is not None:
        return done
    fit = Fit(settings, data, processes)
    processes.main_only(lambda: write_json(settings.output / WORK / "settings.json", settings.to_dict()))
    run = finish(method, method.train(fit))
    if processes.is_main and not settings.keep_checkpoints:
        shutil.rmtree(settings.output / WORK, ignore_errors=True)
    processes.wait()
    return run


def finished_run(settings: FitSettings, data: TaskData) -> RunRecord | None:
    """Return the run in the output folder if it is finished and was made with these settings on these data."""
    run = read_run(settings.output)
    if run is None or (settings.output / WORK / REPLACED).exists():
        return None
    if settings.differences(run.settings) or run.data.fingerprint != data.fingerprint:
        return None
    return run


def finish(method: Method, choice: Choice) -> RunRecord:
    """Measure the best candidate, and write model, tokenizer, card and `run.json` to the output folder."""
    began = time.monotonic()
    fit, best, dense = choice.fit, choice.best, choice.dense
    splits: Splits = {"dev": (fit.dev, fit.data.dev)}
    if fit.data.test is not None and len(fit.data.test):
        splits["test"] = (fit.encoder(fit.data.test), fit.data.test)
    model = method.open(best.folder).to(fit.processes.device)
    last = "test" if "test" in splits else "dev"
    run = replace(
        _about(fit),
        table=_about_table(best.table, method),
        metrics=_metrics(fit, model, splits, method.predict),
        dense=None if dense is None else _about_dense(fit, dense, splits),
        candidates=[CandidateRecord(each.hash, _training(each.record)) for each in choice.candidates],
        macs=method.cost(choice, model, last, splits[last][0]),
        history=best.record.history,
        search=choice.search,
    )
    run = replace(run, seconds=_seconds(dense, choice.candidates, time.monotonic() - began))
    with writing_to(fit.folder):
        fit.processes.main_only(lambda: put_in_place(best.folder, fit.folder, run))
    return run


def put_in_place(source: Path, folder: Path, run: RunRecord) -> None:
    """Write a model to the output folder; from then on the run there is finished, whatever it replaced."""
    write_model(source, folder, run)
    (folder / WORK / REPLACED).unlink(missing_ok=True)


def write_model(source: Path, folder: Path, run: Mapping[str, Any]) -> None:
    """Copy a model with its tokenizer, and write its card and `run.json`, in place of what was there."""
    run = RunRecord.from_dict(run)
    with replaced_model(folder, RUN) as incoming:
        for path in sorted(source.iterdir()):
            # A kill may have left temporary files, whose names begin with a dot.
            if path.is_file() and not path.name.startswith(".") and path.name not in (RECORD, STARTED, RUN):
                shutil.copyfile(path, incoming / path.name)
        (incoming / "README.md").write_text(model_card(run), encoding="utf-8")
        (incoming / RUN).write_text(json_text(run.to_dict()), encoding="utf-8")


def _metrics(fit: Fit, model: Any, splits: Splits, predict: Predict) -> Metrics:
    measured: Metrics = {"dev": None, "test": None}
    for split, (encoded, examples) in splits.items():
        if examples.targets is not None:
            logits = predict(model, encoded, fit.processes)
            measured[split] = scores(fit.data.task, logits, examples.targets)
    return measured


def _about_dense(fit: Fit, dense: Dense, splits: Splits) -> DenseRecord:
    model = dense.backbone.packed(dense.backbone.load(depth=dense.backbone.layers)).to(fit.processes.device)
    training = None if dense.record is None else _training(dense.record)
    metrics = _metrics(fit, model, splits, logits_for)
    return DenseRecord(dense.backbone.source, dense.backbone.layers, training, metrics)


def _about_table(table: ExitTable | None, method: Method) -> TableRecord:
    if table is None:
        return TableRecord(method=method.name)
    about = table.metadata()
    return TableRecord(**{name: about[name] for name in ("method", "num_layers", "parameters", "fingerprint")})


def _about(fit: Fit) -> RunRecord:
    task, data, test = fit.data.task, fit.data, fit.data.test
    return RunRecord(
        settings=fit.settings.to_dict(),
        task=TaskRecord(task.name, str(task.kind), task.metric, len(task.labels)),
        data=DataRecord(
            fingerprint=data.fingerprint,
            notes=list(data.notes),
            sizes={"train": len(data.train), "dev": len(data.dev), "test": 0 if test is None else len(test)},
        ),
        backbone=BackboneRecord(
            name=fit.settings.backbone if fit.given is None else str(fit.settings.dense),
            layers=fit.backbone.layers,
            depth=fit.backbone.depth,
        ),
        recipe=fit.recipe,
        versions=versions(),
        hardware=hardware(fit.processes),
    )


def _training(record: StageRecord) -> TrainingRecord:
    return TrainingRecord(**{name: value for name, value in asdict(record).items() if name != "history"})


def _seconds(dense: Dense | None, candidates: list[Candidate], evaluation: float) -> Seconds:
    parts = {
        "dense": dense.record.seconds if dense is not None and dense.record is not None else 0.0,
        "tables": sum(candidate.table_seconds for candidate in candidates),
        "hashed": sum(candidate.record.seconds for candidate in candidates),
        "evaluation": evaluation,
    }
    return Seconds(**parts, total=sum(parts.values()))
