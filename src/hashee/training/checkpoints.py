"""The checkpoints of a training: which of them are whole, which one a resumed run goes on from, which are deleted."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from transformers import TrainerCallback, TrainerState
from transformers.utils import SAFE_WEIGHTS_NAME

from hashee.errors import CheckpointError
from hashee.files import sync
from hashee.training.durable import digests_of, fault_in, sync_folder
from hashee.training.json_files import read_json, write_json
from hashee.training.processes import Processes

MANIFEST = "digests.json"
"""File of a checkpoint, written last, with the SHA-256 of all others."""
_STATE = "trainer_state.json"


class Checkpoints(TrainerCallback):
    """Completes each checkpoint that the Trainer has written; the last and the best are kept."""

    def __init__(self, folder: Path, processes: Processes | None = None) -> None:
        self.folder = folder
        self.processes = processes

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Bring the checkpoint to the disk, say that it is whole, and only then delete older ones."""
        # A checkpoint is complete when all processes have written their part of it.
        if self.processes is not None:
            self.processes.wait()
        if not state.is_world_process_zero:
            return
        last = checkpoint_at(self.folder, state.global_step)
        sync_folder(last)
        write_json(last / MANIFEST, {"files": digests_of(last)})
        for path in (last / MANIFEST, last, self.folder):
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
    lost = [name for name, tensor in state.items() if name not in stored and tensor.data_ptr() not in shared]
    if lost or not state.keys() >= stored.keys():
        raise CheckpointError(f"the weights in {folder} are those of another model; train this one with --overwrite")
    model.load_state_dict(stored, strict=False)


def last_complete(checkpoints: Path, is_over: Callable[[TrainerState], bool] = lambda state: False) -> Path | None:
    """Return the newest checkpoint that a training can go on from; newer ones are deleted, in one line of words.

    A kill may have left half of one behind, a power cut or a full disk a damaged one.
    """
    faults: list[str] = []
    for folder in _newest_first(checkpoints):
        fault = _fault(folder, is_over)
        if fault is None:
            _say(faults, f"going on from {folder.name}")
            return folder
        faults.append(f"{folder.name} ({fault})")
        # From the newest on, so that none is left whose best has been deleted.
        shutil.rmtree(folder, ignore_errors=True)
    _say(faults, "training from the start")
    return None


def _say(faults: list[str], what_follows: str) -> None:
    if faults:
        print(f"note: left out {', '.join(faults)}; {what_follows}", file=sys.stderr, flush=True)


def _fault(folder: Path, is_over: Callable[[TrainerState], bool]) -> str | None:
    """Say why a training cannot go on from a checkpoint, or None if it can."""
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
    manifest = read_json(folder / MANIFEST)
    if manifest is None or not isinstance(manifest.get("files"), dict):
        return "not written to the end"
    return fault_in(folder, manifest["files"])


def _newest_first(checkpoints: Path) -> list[Path]:
    """Return the folders of checkpoints by falling step."""
    found = [path for path in checkpoints.glob("checkpoint-*") if path.name.partition("-")[2].isdigit()]
    return sorted(found, key=lambda path: int(path.name.partition("-")[2]), reverse=True)
