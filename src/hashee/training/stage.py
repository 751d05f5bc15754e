"""One training of a model: reuse it if it is done, resume it from its last checkpoint, keep the best on dev."""

import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import TrainerCallback, TrainerState
from transformers.utils import SAFE_WEIGHTS_NAME

from hashee.engine.memory import freed_memory_kept
from hashee.errors import CheckpointError, HasheeError
from hashee.files import (
    digests_of,
    fault_in,
    free_megabytes,
    full_disk_told,
    json_text,
    read_json,
    replaced_model,
    sha256_of_json,
    sync,
    sync_folder,
    write_json,
)
from hashee.training.callbacks import SCORE, SECONDS, Patience
from hashee.training.processes import Processes
from hashee.training.settings import FitSettings
from hashee.training.trainer import StepTrainer, TrainingJob

RECORD = "stage.json"
STARTED = "started.json"
_CHECKPOINTS = "checkpoints"
_FILES = "files"
"""In the record: the SHA-256 of every file of the model."""
_TRAINED = "trained"
"""In the record: the fingerprint of the data, and how many passes over them there were."""
_MANIFEST = "digests.json"
"""File of a checkpoint, written last, with the SHA-256 of all others."""
_STATE = "trainer_state.json"


@dataclass(frozen=True)
class Stage:
    """Where a trained model goes, and everything that it depends on."""

    folder: Path
    depends_on: Mapping[str, Any]
    """JSON values; equal ones give an equal model."""

    @property
    def fingerprint(self) -> str:
        """SHA-256 of everything that the model depends on."""
        return sha256_of_json(self.depends_on)

    def finished(self) -> "StageRecord | None":
        """Return the stage's record if its model is complete, unchanged, and was trained from the same inputs."""
        record = read_json(self.folder / RECORD)
        if record is None or record.get("fingerprint") != self.fingerprint:
            return None
        record.pop(_TRAINED, None)
        fault = fault_in(self.folder, record.pop(_FILES, {}))
        if fault is not None:
            print(f"note: in {self.folder}, {fault}; training again", file=sys.stderr, flush=True)
            return None
        return StageRecord(**record)


def passes_in(folder: Path, data: str) -> float | None:
    """Return how many passes over data, by their fingerprint, a stage made the model in a folder with.

    None if nobody knows: it was made elsewhere, on other data, or was changed since.
    """
    record = read_json(folder / RECORD) or {}
    trained = record.get(_TRAINED) or {}
    if trained.get("data") != data or fault_in(folder, record.get(_FILES, {})) is not None:
        return None
    return float(trained["passes"])


@dataclass(frozen=True)
class StageRecord:
    """How a training went."""

    fingerprint: str
    dev: dict[str, float]
    """Metrics on dev of the model that was kept."""
    best_step: int
    steps: int
    seconds: float
    history: list[dict[str, float]]
    """Loss and dev score by step."""


def run_stage(stage: Stage, job: TrainingJob, settings: FitSettings, processes: Processes) -> StageRecord:
    """Train a model and write the best on dev to the stage's folder, unless it is there already."""
    processes.main_only(lambda: check_space(stage.folder, job.model))
    done = processes.main_only(stage.finished)
    if done is not None:
        return done
    checkpoints = stage.folder / _CHECKPOINTS
    processes.main_only(lambda: _prepare(stage, checkpoints))
    trainer = StepTrainer(job, settings, processes, checkpoints)
    trainer.add_callback(Checkpoints(checkpoints, processes))
    last = processes.main_only(lambda: last_complete(checkpoints, lambda state: _is_over(state, settings)))
    state = None if last is None else TrainerState.load_from_json(str(last / _STATE))
    if last is None or state is None or not _is_over(state, settings):
        signals = trainer.stop_request.listening(alone=processes.count == 1)
        with writing_to(stage.folder), running_at_once(settings.tokens), signals, freed_memory_kept():
            trainer.train(resume_from_checkpoint=None if last is None else str(last))
        state = trainer.state
    if state.best_global_step:
        best = checkpoint_at(checkpoints, state.best_global_step)
        if not best.exists():
            processes.main_only(lambda: shutil.rmtree(checkpoints, ignore_errors=True))
            raise CheckpointError(f"the best checkpoint, {best}, is gone; train this model again with --resume")
        load_weights_(job.model, best)
    record = _record(stage, state)
    with writing_to(stage.folder):
        processes.main_only(lambda: _keep(stage, record, job))
    if processes.is_main and not settings.keep_checkpoints:
        shutil.rmtree(checkpoints, ignore_errors=True)
    return record


def _prepare(stage: Stage, checkpoints: Path) -> None:
    """Delete the checkpoints of a training with other inputs, which this one cannot go on from."""
    started = read_json(stage.folder / STARTED)
    if started is None or started.get("fingerprint") != stage.fingerprint:
        shutil.rmtree(checkpoints, ignore_errors=True)
        (stage.folder / RECORD).unlink(missing_ok=True)
        write_json(stage.folder / STARTED, {"fingerprint": stage.fingerprint})


def _is_over(state: TrainerState, settings: FitSettings) -> bool:
    """Tell whether a training that was interrupted had ended already, at its last step or by patience."""
    if settings.patience is not None and Patience(settings.patience).is_exhausted(state):
        return True
    return bool(state.global_step >= state.max_steps)


def _record(stage: Stage, state: TrainerState) -> StageRecord:
    evaluations = [row for row in state.log_history if SCORE in row]
    best = next((row for row in evaluations if row["step"] == state.best_global_step), evaluations[-1])
    own = {SECONDS, "epoch", "step"}
    return StageRecord(
        fingerprint=stage.fingerprint,
        dev={name.removeprefix("eval_"): value for name, value in best.items() if name not in own},
        best_step=int(best["step"]),
        steps=int(state.global_step),
        seconds=float(evaluations[-1][SECONDS]),
        history=[
            {name.removeprefix("eval_"): row[name] for name in ("step", "loss", SCORE) if name in row}
            for row in state.log_history
            if "loss" in row or SCORE in row
        ],
    )


def _keep(stage: Stage, record: StageRecord, job: TrainingJob) -> None:
    with replaced_model(stage.folder, RECORD) as incoming:
        job.saved.save_pretrained(incoming)
        job.tokenizer.save_pretrained(incoming)
        trained = {"data": stage.depends_on.get("data"), "passes": job.recipe.epochs}
        values = asdict(record) | {_TRAINED: trained, _FILES: digests_of(incoming)}
        (incoming / RECORD).write_text(json_text(values), encoding="utf-8")


def drop_weights(folder: Path) -> None:
    """Delete the weights of a stage that was not chosen; its record and its table stay."""
    record = read_json(folder / RECORD) or {}
    files = {name: digest for name, digest in record.get(_FILES, {}).items() if not name.endswith(".safetensors")}
    write_json(folder / RECORD, record | {_FILES: files})
    for path in folder.glob("*.safetensors"):
        path.unlink()


class Checkpoints(TrainerCallback):
    """Completes each checkpoint that the Trainer has written; the last and the best are kept."""

    def __init__(self, folder: Path, processes: Processes | None = None) -> None:
        self.folder = folder
        self.processes = processes

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Sync the checkpoint to the disk, write its manifest, and only then delete older ones."""
        # A checkpoint is complete when all processes have written their part of it.
        if self.processes is not None:
            self.processes.wait()
        if not state.is_world_process_zero:
            return
        last = checkpoint_at(self.folder, state.global_step)
        sync_folder(last)
        write_json(last / _MANIFEST, {"files": digests_of(last)})
        for path in (last / _MANIFEST, last, self.folder):
            sync(path)
        kept = {last, checkpoint_at(self.folder, state.best_global_step or 0)}
        others = [folder for folder in _newest_first(self.folder) if folder not in kept]
        # If the last is the best, the one before it is what to go on from should the last be damaged.
        spared = 0 if sum(folder.exists() for folder in kept) == 2 else 1
        for folder in others[spared:]:
            shutil.rmtree(folder, ignore_errors=True)


def checkpoint_at(checkpoints: Path, step: int) -> Path:
    """Return the folder of the checkpoint of a step, in the Trainer's naming."""
    return checkpoints / f"checkpoint-{step}"


def load_weights_(model: Any, folder: Path) -> None:
    """Give a model the weights of a checkpoint."""
    state = model.state_dict()
    stored = load_file(folder / SAFE_WEIGHTS_NAME)
    # Of weights that are shared, one is written.
    shared = {state[name].data_ptr() for name in stored if name in state}
    # What is never trained is as it was: Marian's sinusoids, which are not written at all.
    fixed = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    known = {*stored, *fixed}
    lost = [name for name, tensor in state.items() if name not in known and tensor.data_ptr() not in shared]
    if lost or not state.keys() >= stored.keys():
        raise CheckpointError(f"the weights in {folder} are those of another model; train this one with --overwrite")
    model.load_state_dict(stored, strict=False)


def last_complete(checkpoints: Path, is_over: Callable[[TrainerState], bool] = lambda state: False) -> Path | None:
    """Return the newest checkpoint that a training can go on from; newer ones are deleted, and one line says why.

    A kill may have left half of one behind, a power cut or a full disk a damaged one.
    """
    faults: list[str] = []
    for folder in _newest_first(checkpoints):
        fault = _fault(folder, is_over)
        if fault is None:
            _print_faults(faults, f"going on from {folder.name}")
            return folder
        faults.append(f"{folder.name} ({fault})")
        # From the newest on, so that none is left whose best has been deleted.
        shutil.rmtree(folder, ignore_errors=True)
    _print_faults(faults, "training from the start")
    return None


def _print_faults(faults: list[str], what_follows: str) -> None:
    if faults:
        print(f"note: left out {', '.join(faults)}; {what_follows}", file=sys.stderr, flush=True)


def _fault(folder: Path, is_over: Callable[[TrainerState], bool]) -> str | None:
    """Return why a training cannot go on from a checkpoint, or None if it can."""
    fault = _damage(folder)
    if fault is not None:
        return fault
    state = TrainerState.load_from_json(str(folder / _STATE))
    best = checkpoint_at(folder.parent, state.best_global_step or state.global_step)
    if best == folder:
        return None
    if not best.exists():
        # It was deleted when a better one had been written, which the same steps will write again.
        return f"the best before it, {best.name}, is missing" if is_over(state) else None
    fault = _damage(best)
    return None if fault is None else f"in the best before it, {best.name}, {fault}"


def _damage(folder: Path) -> str | None:
    manifest = read_json(folder / _MANIFEST)
    if manifest is None or not isinstance(manifest.get("files"), dict):
        return "not written to the end"
    return fault_in(folder, manifest["files"])


def _newest_first(checkpoints: Path) -> list[Path]:
    """Return the folders of checkpoints by falling step."""
    found = [path for path in checkpoints.glob("checkpoint-*") if path.name.partition("-")[2].isdigit()]
    return sorted(found, key=lambda path: int(path.name.partition("-")[2]), reverse=True)


def writing_to(folder: Path) -> AbstractContextManager[None]:
    """Turn a full disk into one line that says how to go on."""
    advice = "make room and go on with --resume, nothing that was trained up to the last checkpoint is lost"
    return full_disk_told(folder, advice)


@contextmanager
def running_at_once(tokens: int) -> Iterator[None]:
    """Turn a lack of memory for a micro-batch of so many tokens into one line that says what to do."""
    try:
        yield
    except (torch.OutOfMemoryError, RuntimeError) as error:
        if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error):
            raise HasheeError(
                f"{tokens:,} tokens at once do not fit into memory; use fewer (--tokens {max(1, tokens // 2)}), which "
                f"takes the same steps"
            ) from error
        raise


def check_space(folder: Path, model: Any) -> None:
    """Raise if the checkpoints of a training would not fit.

    Two are kept while a third is written, each with the weights and two moments of AdamW, and the model at the end.
    """
    weights = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    needed = (3 * 3 + 2) * weights / 1e6
    if free_megabytes(folder) < needed:
        raise HasheeError(
            f"checkpoints in {folder} take about {needed:,.0f} MB but {free_megabytes(folder):,.0f} MB are free; "
            f"make room, or name another --output"
        )
