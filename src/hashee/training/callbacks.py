"""Callbacks of transformers' Trainer: progress, early stopping, signals, and the seed of dropout."""

import sys
from typing import Any

from tqdm import tqdm  # type: ignore[import-untyped]
from transformers import TrainerCallback, TrainerState, set_seed

from hashee.training.processes import Processes
from hashee.training.stopping import StopRequest

SCORE = "eval_score"
SECONDS = "eval_elapsed_seconds"
"""Names in the Trainer's history."""


class Progress(TrainerCallback):
    """Shows a bar with loss, dev score and time left on standard error; in a log file, a line for each evaluation."""

    def __init__(self, title: str, shown: bool) -> None:
        self.title = title
        self.shown = shown
        self.bar: Any = None
        self.numbers: dict[str, str] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Open the bar, at the step from which a resumed run goes on."""
        if self.shown:
            self.bar = tqdm(
                total=state.max_steps,
                initial=state.global_step,
                desc=self.title,
                unit="step",
                dynamic_ncols=True,
                disable=None,  # only on a terminal
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Move on by a step."""
        if self.bar is not None:
            self.bar.update(1)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        """Show the mean loss since the last log."""
        if self.bar is not None and logs is not None and "loss" in logs:
            self.numbers["loss"] = f"{logs['loss']:.3f}"
            self.bar.set_postfix(self.numbers)

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: dict[str, float] | None = None, **kwargs: Any
    ) -> None:
        """Show the score on dev."""
        if self.bar is None or metrics is None:
            return
        self.numbers["dev"] = f"{metrics[SCORE]:.4f}"
        self.bar.set_postfix(self.numbers)
        if self.bar.disable:
            loss = f", loss {self.numbers['loss']}" if "loss" in self.numbers else ""
            share = state.global_step / max(state.max_steps, 1)
            left = metrics[SECONDS] * (1 - share) / max(share, 1e-9)
            print(
                f"{self.title}: step {state.global_step} of {state.max_steps}{loss}, dev {self.numbers['dev']}, "
                f"{tqdm.format_interval(left)} left",
                file=sys.stderr,
                flush=True,
            )

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Close the bar."""
        if self.bar is not None:
            self.bar.close()
            self.bar = None


class Patience(TrainerCallback):
    """Stops when dev has not got better for a number of evaluations, which the Trainer's history tells."""

    def __init__(self, evaluations: int) -> None:
        self.evaluations = evaluations

    def is_exhausted(self, state: TrainerState) -> bool:
        """Tell whether the best score is that many evaluations old."""
        scores = [row[SCORE] for row in state.log_history if SCORE in row]
        return bool(scores) and len(scores) - 1 - scores.index(max(scores)) >= self.evaluations

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop the training when patience is exhausted."""
        if self.is_exhausted(state):
            control.should_training_stop = True


class StopWhenRequested(TrainerCallback):
    """Stops after the step in which a signal came, with a checkpoint from which a resumed run goes on unchanged."""

    def __init__(self, request: StopRequest, steps_per_epoch: int) -> None:
        self.request = request
        self.steps_per_epoch = steps_per_epoch
        self.within_epoch = False

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop after this step; at the end of an epoch, the Trainer evaluates on dev and writes a checkpoint anyway."""
        if not self.request.requested:
            return
        control.should_training_stop = True
        ends_epoch = state.global_step % self.steps_per_epoch == 0 or state.global_step >= state.max_steps
        if not (ends_epoch and args.save_strategy == "epoch"):
            control.should_save = True
            self.within_epoch = True

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Do not evaluate half an epoch as a whole one."""
        if self.within_epoch:
            control.should_evaluate = False
            control.should_save = False


class DropoutSeed(TrainerCallback):
    """Seeds dropout when training begins, whatever was computed before; each process draws its own."""

    def __init__(self, seed: int, processes: Processes) -> None:
        self.seed = (seed + 1_000_003 * processes.rank) % 2**32

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Seed the global generators."""
        set_seed(self.seed)
