"""The end of a fit: the best candidate is measured on dev and test and written with everything that is known of it."""

import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hashee.fitting.json_files import json_text, read_json, write_json
from hashee.fitting.model_card import model_card
from hashee.fitting.processes import Processes
from hashee.fitting.record import hardware, macs_of, versions
from hashee.fitting.replacing import replaced_model
from hashee.fitting.resources import writing_to
from hashee.fitting.settings import FitSettings
from hashee.fitting.stage import RECORD, STARTED, StageRecord
from hashee.fitting.stages import WORK, Candidate, Dense, Fit
from hashee.loading import load
from hashee.tasks import Examples, TaskData
from hashee.tasks.encoding import Encoded

RUN = "run.json"
REPLACED = "replaced.json"
"""Where this is, in the work folder, `run.json` and model are of a run that is being replaced."""

Splits = dict[str, tuple[Encoded, Examples]]


@dataclass(frozen=True)
class Choice:
    """Models that were fitted, of which the best on dev is kept."""

    fit: Fit
    candidates: list[Candidate]
    more: dict[str, Any] = field(default_factory=dict)
    """What else `run.json` shall say."""

    @property
    def best(self) -> Candidate:
        """The candidate with the best score on dev; the first of equals."""
        return max(self.candidates, key=lambda candidate: candidate.score)


Choose = Callable[[Fit, Dense | None], Choice]


def each_hash(fit: Fit, dense: Dense | None) -> Choice:
    """Fit a candidate for each kind of table that the settings ask for."""
    return Choice(fit, [fit.hashed(kind, dense, fit.folder / WORK / kind) for kind in fit.settings.hashes])


def fit_once(settings: FitSettings, data: TaskData, processes: Processes, choose: Choose) -> dict[str, Any]:
    """Fit one model into the output folder, unless it is finished there, and return what `run.json` holds."""
    done = processes.main_only(lambda: finished_run(settings, data))
    if done is not None:
        return done
    fit = Fit(settings, data, processes)
    processes.main_only(lambda: write_json(settings.output / WORK / "settings.json", settings.to_dict()))
    dense = fit.dense() if settings.needs_dense else None
    run = finish(dense, choose(fit, dense))
    if processes.is_main and not settings.keep_checkpoints:
        shutil.rmtree(settings.output / WORK, ignore_errors=True)
    processes.wait()
    return run


def finished_run(settings: FitSettings, data: TaskData) -> dict[str, Any] | None:
    """Return the run in the output folder if it is finished and was made with these settings on these data."""
    run = read_json(settings.output / RUN)
    if run is None or (settings.output / WORK / REPLACED).exists():
        return None
    if settings.differences(run["settings"]) or run["data"]["fingerprint"] != data.fingerprint:
        return None
    return run


def finish(dense: Dense | None, choice: Choice) -> dict[str, Any]:
    """Measure the best candidate, and write model, tokenizer, card and `run.json` to the output folder."""
    began = time.monotonic()
    fit, best = choice.fit, choice.best
    splits: Splits = {"dev": (fit.dev, fit.data.dev)}
    if fit.data.test is not None and len(fit.data.test):
        splits["test"] = (fit.encoder(fit.data.test), fit.data.test)
    model = load(best.folder).to(fit.processes.device)
    last = "test" if "test" in splits else "dev"
    reads_first_row = model.hashed_encoder.reads_first_row
    table = best.table.metadata()
    run = _about(fit) | {
        "table": {name: table[name] for name in ("method", "num_layers", "parameters", "fingerprint")},
        "metrics": _metrics(fit, model, splits),
        "dense": None if dense is None else _about_dense(fit, dense, splits),
        "candidates": [{"hash": each.hash} | _without_history(each.record) for each in choice.candidates],
        "macs": macs_of(fit.backbone.config, best.table, splits[last][0], last, reads_first_row),
        "history": best.record.history,
        **choice.more,
        "seconds": _seconds(dense, choice.candidates, time.monotonic() - began),
    }
    with writing_to(fit.folder):
        fit.processes.main_only(lambda: put_in_place(best.folder, fit.folder, run))
    return run


def put_in_place(source: Path, folder: Path, run: dict[str, Any]) -> None:
    """Write a model to the output folder; from then on the run there is finished, whatever it replaced."""
    write_model(source, folder, run)
    (folder / WORK / REPLACED).unlink(missing_ok=True)


def write_model(source: Path, folder: Path, run: dict[str, Any]) -> None:
    """Copy a model with its tokenizer, and write its card and `run.json`, in place of what was there."""
    with replaced_model(folder, RUN) as incoming:
        for path in sorted(source.iterdir()):
            # A kill may have left temporary files, whose names begin with a dot.
            if path.is_file() and not path.name.startswith(".") and path.name not in (RECORD, STARTED, RUN):
                shutil.copyfile(path, incoming / path.name)
        (incoming / "README.md").write_text(model_card(run), encoding="utf-8")
        (incoming / RUN).write_text(json_text(run), encoding="utf-8")


def _metrics(fit: Fit, model: Any, splits: Splits) -> dict[str, Any]:
    measured: dict[str, Any] = {"dev": None, "test": None}
    for split, (encoded, examples) in splits.items():
        if examples.targets is not None:
            measured[split] = fit.measure(model, encoded, examples)
    return measured


def _about_dense(fit: Fit, dense: Dense, splits: Splits) -> dict[str, Any]:
    model = dense.backbone.packed(dense.backbone.load(depth=dense.backbone.layers)).to(fit.processes.device)
    fitted = {} if dense.record is None else _without_history(dense.record)
    return (
        {"folder": dense.backbone.source, "layers": dense.backbone.layers}
        | fitted
        | {"metrics": _metrics(fit, model, splits)}
    )


def _about(fit: Fit) -> dict[str, Any]:
    task, data, test = fit.data.task, fit.data, fit.data.test
    return {
        "task": {"name": task.name, "kind": str(task.kind), "metric": task.metric, "labels": len(task.labels)},
        "data": {
            "fingerprint": data.fingerprint,
            "notes": list(data.notes),
            "sizes": {"train": len(data.train), "dev": len(data.dev), "test": 0 if test is None else len(test)},
        },
        "backbone": {
            "name": fit.settings.backbone if fit.given is None else str(fit.settings.dense),
            "layers": fit.backbone.layers,
            "depth": fit.backbone.depth,
        },
        "settings": fit.settings.to_dict(),
        "recipe": asdict(fit.recipe),
        "versions": versions(),
        "hardware": hardware(fit.processes),
    }


def _without_history(record: StageRecord) -> dict[str, Any]:
    return {name: value for name, value in asdict(record).items() if name != "history"}


def _seconds(dense: Dense | None, candidates: list[Candidate], evaluation: float) -> dict[str, float]:
    seconds = {
        "dense": dense.record.seconds if dense is not None and dense.record is not None else 0.0,
        "tables": sum(candidate.table_seconds for candidate in candidates),
        "hashed": sum(candidate.record.seconds for candidate in candidates),
        "evaluation": evaluation,
    }
    return seconds | {"total": sum(seconds.values())}
