"""One training with everything around it: reuse what is done, go on after an interruption, keep the best on dev."""

import shutil
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transformers import TrainerState

from hashee.errors import CheckpointError
from hashee.training.checkpoints import checkpoint_at, last_complete, load_weights_
from hashee.training.durable import digests_of, fault_in
from hashee.training.json_files import fingerprint_of, json_text, read_json, write_json
from hashee.training.processes import Processes
from hashee.training.replacing import replaced_model
from hashee.training.resources import running_at_once, writing_to
from hashee.training.settings import FitSettings
from hashee.training.trainer import SCORE, SECONDS, TrainingJob, Patience, StepTrainer

RECORD = "stage.json"
STARTED = "started.json"
_CHECKPOINTS = "checkpoints"
_FILES = "files"
"""In the record: the SHA-256 of every file of the model."""


@dataclass(frozen=True)
class Stage:
    """Where a trained model goes, and everything that it depends on."""

    folder: Path
    depends_on: Mapping[str, Any]
    """JSON values; equal ones give an equal model."""

    @property
    def fingerprint(self) -> str:
        """SHA-256 of everything that the model depends on."""
        return fingerprint_of(self.depends_on)

    def finished(self) -> "StageRecord | None":
        """Return the record of the stage if its model is there as it was written and depends on the very same."""
        record = read_json(self.folder / RECORD)
        if record is None or record.get("fingerprint") != self.fingerprint:
            return None
        fault = fault_in(self.folder, record.pop(_FILES, {}))
        if fault is not None:
            print(f"note: in {self.folder}, {fault}; training again", file=sys.stderr, flush=True)
            return None
        return StageRecord(**record)


@dataclass(frozen=True)
class StageRecord:
    """How a training went."""

    fingerprint: str
    dev: dict[str, float]
    """Measures on dev of the model that was kept."""
    best_step: int
    steps: int
    seconds: float
    history: list[dict[str, float]]
    """Loss and dev score by step."""


def run_stage(stage: Stage, job: TrainingJob, settings: FitSettings, processes: Processes) -> StageRecord:
    """Train a model and write the best on dev to the stage's folder, unless it is there already."""
    done = processes.main_only(stage.finished)
    if done is not None:
        return done
    checkpoints = stage.folder / _CHECKPOINTS
    processes.main_only(lambda: _prepare(stage, checkpoints))
    trainer = StepTrainer(job, settings, processes, checkpoints)
    last = processes.main_only(lambda: last_complete(checkpoints, lambda state: _is_over(state, settings)))
    state = None if last is None else TrainerState.load_from_json(str(last / "trainer_state.json"))
    if last is None or state is None or not _is_over(state, settings):
        watched = trainer.interruption.watched(alone=processes.count == 1)
        with writing_to(stage.folder), running_at_once(settings.tokens), watched:
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
    """Make room: checkpoints of a training that depends on anything else are of no use."""
    started = read_json(stage.folder / STARTED)
    if started is None or started.get("fingerprint") != stage.fingerprint:
        shutil.rmtree(checkpoints, ignore_errors=True)
        (stage.folder / RECORD).unlink(missing_ok=True)
        write_json(stage.folder / STARTED, {"fingerprint": stage.fingerprint})


def _is_over(state: TrainerState, settings: FitSettings) -> bool:
    """Say whether a training had come to its end when it was interrupted, by patience too."""
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
        values = asdict(record) | {_FILES: digests_of(incoming)}
        (incoming / RECORD).write_text(json_text(values), encoding="utf-8")


def drop_weights(folder: Path) -> None:
    """Keep the record of a stage and its table; its weights are of no use any more."""
    record = read_json(folder / RECORD) or {}
    files = {name: digest for name, digest in record.get(_FILES, {}).items() if not name.endswith(".safetensors")}
    write_json(folder / RECORD, record | {_FILES: files})
    for path in folder.glob("*.safetensors"):
        path.unlink()
