"""From trained candidates to a finished run: the best on dev is evaluated and written with run.json and model card."""

import platform
import shutil
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from hashee.cost.macs import BERT_BASE, Costs, dense_macs
from hashee.cost.threads import usable_cores
from hashee.data import Examples, Kind, TaskData
from hashee.data.predictions import scores
from hashee.data.run_record import (
    PARTS,
    RUN,
    BackboneRecord,
    CandidateRecord,
    DataRecord,
    DenseRecord,
    MacsRecord,
    Metrics,
    PartRecord,
    RunRecord,
    Seconds,
    TableRecord,
    TaskRecord,
    TrainingRecord,
    dev_score,
    read_run,
)
from hashee.data.task_types import TASK_TYPES
from hashee.data.tokenized import Tokenized
from hashee.data.writing import Writing
from hashee.errors import InputError
from hashee.families.adapters import adapter_for
from hashee.files import json_text, replaced_model, write_json
from hashee.hf.generation_flops import count_generation
from hashee.tables.table import ExitTable
from hashee.training.backbone import Seq2SeqBackbone
from hashee.training.evaluation import Array, Predictions, WritingCosts, logits_for
from hashee.training.method import Method
from hashee.training.processes import Processes
from hashee.training.settings import FitSettings
from hashee.training.stage import RECORD, STARTED, StageRecord, writing_to
from hashee.training.stages import WORK, Candidate, Choice, Dense, Fit

REPLACED = "replaced.json"
"""While this file is in the work folder, `run.json` and model are of a run that is being replaced."""
_PACKAGES = ("hashee", "torch", "transformers", "accelerate", "tokenizers", "numpy")

_PIPELINE = ("from transformers import pipeline", "", 'model = pipeline("{pipeline}", model="path/of/this/folder")')
_WRITE = (
    "from transformers import AutoModelForSeq2SeqLM, AutoTokenizer",
    "",
    'model = AutoModelForSeq2SeqLM.from_pretrained("path/of/this/folder")',
    'tokenizer = AutoTokenizer.from_pretrained("path/of/this/folder")',
    'ids = model.generate(**tokenizer(document, return_tensors="pt", truncation=True))',
    "print(tokenizer.decode(ids[0], skip_special_tokens=True))",
)
"""How a model card says that models are used."""

Splits = dict[str, tuple[Tokenized, Examples]]


def fit_once(settings: FitSettings, data: TaskData, processes: Processes, method: Method) -> RunRecord:
    """Fit one model into the output folder, unless it is finished there, and return what `run.json` holds."""
    done = processes.main_only(lambda: finished_run(settings, data))
    if done is not None and not lacks_comparison(settings, done):
        return done
    fit = Fit(settings, data, processes)
    processes.main_only(lambda: write_json(settings.output / WORK / "settings.json", settings.to_dict()))
    run = finish(method, method.train(fit)) if done is None else done
    if lacks_comparison(settings, run):
        run = add_comparison(fit, run)
    if processes.is_main and not settings.keep_checkpoints:
        shutil.rmtree(settings.output / WORK, ignore_errors=True)
    processes.wait()
    return run


def fit_seeds(
    settings: FitSettings, each: FitSettings, data: TaskData, processes: Processes, method: Method
) -> RunRecord:
    """Fit once per seed, in OUTPUT/seed-N, and put the best on dev in OUTPUT; seeds that are finished are reused.

    settings: the user's; each: those of every seed, in which a search has fixed the hyper-parameters.
    """
    done = processes.main_only(lambda: finished_run(settings, data))
    if done is not None and not lacks_comparison(settings, done):
        return done
    # A finished run that is compared only now goes on with that when it is resumed.
    processes.main_only(lambda: write_json(settings.output / WORK / "settings.json", settings.to_dict()))
    runs = []
    for seed in range(settings.seed, settings.seed + settings.seeds):
        output = settings.output / f"seed-{seed}"
        runs.append(fit_once(replace(each, seed=seed, seeds=1, output=output), data, processes, method))
    best = max(runs, key=lambda run: dev_score(run.metrics))
    summary = {
        split: spread([run.metrics[split] or {} for run in runs]) if best.metrics[split] else None
        for split in ("dev", "test")
    }
    run = replace(
        best,
        settings=settings.to_dict(),
        best_seed=best.settings["seed"],
        seeds=[{"seed": run.settings["seed"], "metrics": run.metrics} for run in runs],
        summary=summary,
        seconds=Seconds(*(sum(each) for each in zip(*(astuple(run.seconds) for run in runs), strict=True))),
    )
    source = settings.output / f"seed-{run.best_seed}"
    with writing_to(settings.output):
        processes.main_only(lambda: put_in_place(source, settings.output, run))
    return run


def finished_run(settings: FitSettings, data: TaskData) -> RunRecord | None:
    """Return the run in the output folder if it is finished and was made with these settings on these data."""
    run = read_run(settings.output)
    if run is None or (settings.output / WORK / REPLACED).exists():
        return None
    if settings.differences(run.settings) or run.data.fingerprint != data.fingerprint:
        return None
    return run


def lacks_comparison(settings: FitSettings, run: RunRecord) -> bool:
    """Tell whether a dense model with as many passes was asked for and is not there."""
    return settings.compare_dense and run.dense_equal is None


def add_comparison(fit: Fit, run: RunRecord) -> RunRecord:
    """Fit a dense model for as many passes as the model of a finished run had in all, and record its metrics."""
    if run.passes is None:
        raise InputError(f"nobody knows how many passes the model in {fit.folder} had; fit it again to compare it")
    if run.dense is not None and run.dense.passes == run.passes:
        record = run.dense
    else:
        record = dense_record(fit, fit.with_recipe(run.recipe).dense_equal(run.passes))
    run = replace(run, settings=fit.settings.to_dict(), dense_equal=record)
    with writing_to(fit.folder):
        fit.processes.main_only(lambda: write_json(fit.folder / RUN, run.to_dict()))
    return run


def finish(method: Method, choice: Choice) -> RunRecord:
    """Evaluate the best candidate, and write model, tokenizer, card and `run.json` to the output folder."""
    began = time.monotonic()
    fit, best, dense = choice.fit, choice.best, choice.dense
    splits = _splits(fit)
    model = method.open(best.folder).to(fit.processes.device)
    last = "test" if "test" in splits else "dev"
    knob = method.knobs(model)[0]
    found = {split: method.predict(model, tokenized, fit.processes, knob) for split, (tokenized, _) in splits.items()}
    run = replace(
        _record_of_inputs(fit),
        table=_table_record(best.table, method),
        metrics=_metrics(fit, splits, {split: each.logits for split, each in found.items()}),
        dense=None if dense is None else dense_record(fit, dense),
        candidates=[
            CandidateRecord(each.hash, _training_record(each.record), each.passes) for each in choice.candidates
        ],
        macs=_macs(fit, model, found[last], splits[last][0], last),
        passes=best.passes,
        history=best.record.history,
        search=choice.search,
    )
    run = replace(run, seconds=_seconds(dense, choice.candidates, time.monotonic() - began))
    with writing_to(fit.folder):
        fit.processes.main_only(lambda: put_in_place(best.folder, fit.folder, run))
    return run


def put_in_place(source: Path, folder: Path, run: RunRecord) -> None:
    """Write a model to the output folder; then the run there is finished, and the old one is replaced."""
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


def _splits(fit: Fit) -> Splits:
    """Return the splits that models are evaluated on."""
    splits: Splits = {"dev": fit.judged_dev}
    if fit.test is not None and fit.data.test is not None:
        splits["test"] = (fit.test, fit.data.test)
    return splits


def _metrics(fit: Fit, splits: Splits, logits: Mapping[str, list[Array]]) -> Metrics:
    """Return the metrics on each split; None without targets."""
    metrics: Metrics = {"dev": None, "test": None}
    for split, (_, examples) in splits.items():
        if examples.targets is not None:
            metrics[split] = scores(fit.data.task, logits[split], examples.targets)
    return metrics


def _macs(fit: Fit, model: Any, found: Predictions, tokenized: Tokenized, split: str) -> MacsRecord:
    if found.writing is None or not isinstance(fit.backbone, Seq2SeqBackbone):
        return macs_record(fit.backbone.config, found.costs, tokenized, split)
    return writing_record(fit.backbone.dense_config(model.config), found.writing, tokenized, split)


def writing_record(config: Any, found: WritingCosts, tokenized: Tokenized, split: str) -> MacsRecord:
    """Return what it costs to read documents and write texts, per text, beside the whole backbone by the paper's count.

    config: the backbone's at its full depth.
    """
    lengths, texts = tokenized.lengths, max(len(tokenized), 1)
    beams = getattr(tokenized, "writing", Writing()).num_beams or 1
    sources = [row.tolist() for row in tokenized.ids]
    whole = count_generation(config, sources, found.ids, tables=(None, None), num_beams=beams).with_exits
    seconds = (found.encoder_seconds, found.decoder_seconds)
    parts: dict[str, PartRecord] = {}
    for name, spent in zip(PARTS, (*seconds, sum(seconds)), strict=True):
        dense, own = getattr(whole, name).paper.sum() / texts, getattr(found.costs, name)
        paper, executed = own.paper.sum() / texts, own.executed.sum() / texts
        ratios = (dense / max(executed, 1), dense / max(paper, 1))
        parts[name] = PartRecord(*map(float, (dense, paper, executed, *ratios, spent)))
    of_whole: dict[str, Any] = {name: value for name, value in asdict(parts["total"]).items() if name != "seconds"}
    record = MacsRecord(split=split, texts=len(lengths), tokens=int(lengths.sum()), **of_whole)
    return replace(record, encoder=parts["encoder"], decoder=parts["decoder"], total=parts["total"])


def macs_record(config: Any, costs: Costs, tokenized: Tokenized, split: str) -> MacsRecord:
    """Return what the texts of a split cost, per text, beside the whole backbone.

    config: the backbone's at its full depth; costs: of each example.
    """
    shape, lengths = adapter_for(config).shape(config), tokenized.lengths
    texts = max(len(lengths), 1)
    dense, bert_base = (dense_macs(each, each.layers, lengths) / texts for each in (shape, BERT_BASE))
    paper, executed = float(costs.paper.sum()) / texts, float(costs.executed.sum()) / texts
    return MacsRecord(
        split=split,
        texts=len(lengths),
        tokens=int(lengths.sum()),
        dense_per_text=dense,
        paper_per_text=paper,
        executed_per_text=executed,
        speedup=dense / max(executed, 1),
        paper_speedup=dense / max(paper, 1),
        speedup_vs_bert_base=bert_base / max(paper, 1),
    )


def dense_record(fit: Fit, dense: Dense) -> DenseRecord:
    """Evaluate a dense model on dev and test."""
    splits = _splits(fit)
    model = dense.backbone.packed(dense.backbone.load(depth=dense.backbone.layers)).to(fit.processes.device)
    training = None if dense.record is None else _training_record(dense.record)
    logits = {split: logits_for(model, tokenized, fit.processes) for split, (tokenized, _) in splits.items()}
    return DenseRecord(
        dense.backbone.source, dense.backbone.layers, training, _metrics(fit, splits, logits), dense.passes
    )


def _table_record(table: ExitTable | None, method: Method) -> TableRecord:
    if table is None:
        return TableRecord(method=method.name)
    about = table.metadata()
    return TableRecord(**{name: about[name] for name in ("method", "num_layers", "parameters", "fingerprint")})


def _record_of_inputs(fit: Fit) -> RunRecord:
    """Return a record with everything that is known before anything is trained."""
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


def _training_record(record: StageRecord) -> TrainingRecord:
    return TrainingRecord(**{name: value for name, value in asdict(record).items() if name != "history"})


def _seconds(dense: Dense | None, candidates: list[Candidate], evaluation: float) -> Seconds:
    parts = {
        "dense": dense.record.seconds if dense is not None and dense.record is not None else 0.0,
        "tables": sum(candidate.table_seconds for candidate in candidates),
        "hashed": sum(candidate.record.seconds for candidate in candidates),
        "evaluation": evaluation,
    }
    return Seconds(**parts, total=sum(parts.values()))


def spread(rows: Sequence[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Return mean and standard deviation (of the sample) of each metric."""
    return {
        name: {
            "mean": statistics.fmean(row[name] for row in rows),
            "std": statistics.stdev([row[name] for row in rows]) if len(rows) > 1 else 0.0,
        }
        for name in rows[0]
    }


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that matter."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "unknown"
    return found


def hardware(processes: Processes) -> dict[str, Any]:
    """Return what the fit ran on."""
    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return {
        "system": platform.platform(),
        "machine": platform.machine(),
        "cores": usable_cores(),
        "threads": torch.get_num_threads(),
        "gpus": gpus,
        "processes": processes.count,
    }


def model_card(run: RunRecord) -> str:
    """Return the text of a model card from what `run.json` holds."""
    task, macs = run.task, run.macs
    task_type = TASK_TYPES[Kind(task.kind)]
    pipeline = task_type.pipeline
    rows = [f"| {split} | {name} | {value:.4f} |" for split, name, value in _scores(run)]
    return "\n".join(
        [
            "---",
            "library_name: transformers",
            f"pipeline_tag: {pipeline}",
            "tags: [hashee, early-exit]",
            "---",
            "",
            f"# {task.name}, with exits by {run.table.method}",
            "",
            f"Fitted with hashee {run.versions['hashee']} from "
            f"`{run.backbone.name}`, of which it keeps {run.backbone.depth} of "
            f"{run.backbone.layers} layers. Every token has a fixed exit layer; on the {macs.split} texts the "
            f"model executes {macs.speedup:.1f} times fewer multiply-accumulates than the whole backbone.",
            "",
            "| split | metric | value |",
            "|---|---|---|",
            *rows,
            "",
            "```python",
            "import hashee  # lets transformers know models with exits; no trust_remote_code",
            *(line.format(pipeline=pipeline) for line in (_WRITE if task_type.writes_text else _PIPELINE)),
            "```",
            "",
            "`run.json` holds settings, versions, a fingerprint of the data, all metrics and the history of the loss.",
            "",
        ]
    )


def _scores(run: RunRecord) -> list[tuple[str, str, float]]:
    splits = {split: values for split, values in run.metrics.items() if values}
    return [(split, name, value) for split, values in splits.items() for name, value in values.items()]
