"""`hashee.fit`: from a backbone and labelled texts to a model with exits."""

import shutil
import sys
from dataclasses import dataclass, replace
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hashee.cost.threads import torch_threads
from hashee.data.run_record import RunRecord
from hashee.errors import InputError
from hashee.files import read_json, write_json
from hashee.hf.pretrained import quiet_transformers
from hashee.packages import require
from hashee.training.settings import INDIFFERENT, FitSettings

if TYPE_CHECKING:
    from hashee.data import TaskData
    from hashee.training.method import Method
    from hashee.training.processes import Processes


_NOTES = ("data.json", "settings.json")
"""Files in the work folder that say what a run was told, before anything is trained."""


@dataclass(frozen=True)
class FitResult:
    """The result of a fit."""

    model: Any
    """The fitted model, in eval mode; its folder can be opened with `from_pretrained` and `hashee.load`."""
    run: RunRecord
    """What `run.json` holds: metrics, macs, seconds, settings, versions, ..."""
    folder: Path


def fit(settings: FitSettings | None = None, **fields: Any) -> FitResult:
    """Fit a model with exits to a task and write it to a folder.

    Takes the fields of `FitSettings`, or settings and fields to change in them. With `resume=True`, `output` is
    enough: the other settings are read from there, and fields that are given must be equal to them.
    """
    # Imported here, because the Trainer takes seconds and the packages for training are an extra.
    require("accelerate", "train", "fitting")
    from hashee.training.method import method_named  # noqa: PLC0415
    from hashee.training.outcome import fit_once, fit_seeds  # noqa: PLC0415
    from hashee.training.processes import current_processes  # noqa: PLC0415
    from hashee.training.search import require_optuna  # noqa: PLC0415

    settings = complete_settings(settings, fields)
    method = method_named(settings.method)
    if settings.search is not None:
        require_optuna()
    with quiet_transformers(), torch_threads(settings.threads):
        processes = current_processes()
        data = settings.load_data()
        if (refusal := method.refusal(data.task)) is not None:
            raise InputError(refusal)
        processes.main_only(lambda: claim_output(settings, data))
        if processes.is_main and not settings.quiet:
            for note in data.notes:
                print(f"note: {note}", file=sys.stderr)
        if settings.seeds > 1:
            each = _searched_settings(settings, data, processes, method) if settings.search is not None else settings
            run = fit_seeds(settings, each, data, processes, method)
        else:
            run = fit_once(settings, data, processes, method)
        return FitResult(method.open(settings.output), run, settings.output)


def complete_settings(settings: FitSettings | None, fields: dict[str, Any]) -> FitSettings:
    """Return settings with changed fields; the settings of a run that is resumed are read from its folder."""
    known = [field.name for field in dataclass_fields(FitSettings)]
    for name in fields:
        if name not in known:
            raise InputError(f"there is no setting {name!r}; the settings are {', '.join(known)}")
    if settings is not None:
        return replace(settings, **fields)
    if fields.get("resume") and "output" in fields:
        stored = stored_settings(Path(fields["output"]))
        if stored is not None:
            return _resumed(stored, fields)
        if "task" not in fields:
            raise InputError(
                f"nothing in {fields['output']} says what was being fitted: there was no run, or it was stopped before "
                f"it had begun; start it with the whole command, as the first time"
            )
    for name in ("task", "output"):
        if name not in fields:
            raise InputError(f"{name} is missing; say {'what to fit' if name == 'task' else 'where to write'}")
    return FitSettings(**fields)


def _resumed(stored: dict[str, Any], fields: dict[str, Any]) -> FitSettings:
    """Return the settings that a run was begun with; fields that do not change its result may be given anew."""
    if isinstance(stored["task"], dict) and "task" not in fields:
        raise InputError(
            f"the run in {fields['output']} was given its data ({stored['task']['name']}) in Python; "
            f"resume it there, with task="
        )
    # As many threads add numbers up in the same order; a comparison that was asked for is still wanted.
    asked = ("threads", "compare_dense")
    kept = {name: value for name, value in stored.items() if name not in INDIFFERENT or name in asked}
    return FitSettings(**(kept | fields))


def stored_settings(output: Path) -> dict[str, Any] | None:
    """Return the settings of the run in a folder, finished or not; None if there is none, or they are damaged."""
    known = {field.name for field in dataclass_fields(FitSettings)}
    run = read_json(output / "run.json") or {}
    for stored in (read_json(output / "work" / "settings.json"), run.get("settings")):
        if isinstance(stored, dict) and "task" in stored and known.issuperset(stored):
            return stored
    return None


def claim_output(settings: FitSettings, data: "TaskData") -> None:
    """Raise if the output folder holds something that must not be overwritten; else write the settings of a new run."""
    output = settings.output
    stored = stored_settings(output)
    if stored is None:
        if (output / "config.json").exists():
            raise InputError(f"{output} holds a model that was not fitted here; name another output")
        if settings.resume and not output.exists():
            raise InputError(f"there is nothing to resume in {output}")
    elif not settings.overwrite and (settings.resume or _has_results(output)):
        _check_resumable(settings, stored, data)
    if settings.overwrite or not (output / "run.json").exists():
        _begin(settings, data)


def _has_results(output: Path) -> bool:
    """Say whether a run has left more than what it was told, which a run that was refused leaves alone."""
    return any(path.is_file() and path not in (output / "work" / name for name in _NOTES) for path in output.rglob("*"))


def _check_resumable(settings: FitSettings, stored: dict[str, Any], data: "TaskData") -> None:
    output = settings.output
    if not settings.resume:
        raise InputError(f"{output} holds a run already; go on with it (--resume) or replace it (--overwrite)")
    differences = settings.differences(stored)
    if differences:
        raise InputError(f"{output} was begun otherwise: {differences[0]}; name another output, or --overwrite")
    seen = read_json(output / "work" / "data.json") or (read_json(output / "run.json") or {}).get("data", {})
    if seen.get("fingerprint", data.fingerprint) != data.fingerprint:
        raise InputError(f"the data have changed since the run in {output} was begun; start again with --overwrite")


def _begin(settings: FitSettings, data: "TaskData") -> None:
    """Write settings and fingerprint of a new run; with `overwrite`, delete the files of the old one, except its model.

    A kill in between leaves the old run, or the new one to be resumed.
    """
    from hashee.training.outcome import REPLACED  # noqa: PLC0415

    output, work = settings.output, settings.output / "work"
    files = dict(zip(_NOTES, ({"fingerprint": data.fingerprint}, settings.to_dict()), strict=True))
    for name, values in files.items():
        write_json(work / name, values)
    if not settings.overwrite:
        return
    if (output / "run.json").exists():
        write_json(work / REPLACED, {})
    (output / "search.db").unlink(missing_ok=True)
    for path in (*work.iterdir(), *output.glob("seed-*")):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name not in (*files, REPLACED):
            path.unlink()


def _searched_settings(
    settings: FitSettings, data: "TaskData", processes: "Processes", method: "Method"
) -> FitSettings:
    """Search with the first seed, and return settings with the best hyper-parameters fixed: the paper's protocol."""
    from hashee.training.stages import Fit  # noqa: PLC0415

    choice = method.train(Fit(settings, data, processes))
    recipe = choice.fit.recipe
    found = {name: getattr(recipe, name) for name in ("learning_rate", "batch_size", "epochs", "warmup_ratio")}
    found |= {"weight_decay": recipe.weight_decay, "hash": choice.best.hash}
    if settings.table is not None:
        found.pop("hash")
    return replace(settings, search=None, **found)
