"""transformers' Trainer with steps of a fixed number of examples, cut by token cost, and quality measured on dev."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainerState, TrainingArguments, set_seed

from hashee.data import Recipe
from hashee.data.encoding import Encoded
from hashee.errors import HasheeError, InputError
from hashee.training.checkpoints import Checkpoints
from hashee.training.interruption import Interruption
from hashee.training.objective import Objective
from hashee.training.outputs import Batch, Need, batch_of, outputs_of
from hashee.training.processes import Processes
from hashee.training.progress import Progress
from hashee.training.settings import FitSettings
from hashee.training.steps import Steps, share_of_step
from hashee.training.teacher import Teacher

SCORE = "eval_score"
SECONDS = "eval_elapsed_seconds"


@dataclass(frozen=True)
class TrainingJob:
    """What is trained, on what, and how its quality is measured."""

    title: str
    model: Any
    saved: Any
    """What is written in the end: the model, or one that shares its parameters."""
    tokenizer: Any
    train: Encoded
    objective: Objective
    recipe: Recipe
    seed: int
    metrics: Callable[[Any], dict[str, float]]
    """From the model to its measures on dev, `score` among them; all processes call it together."""
    teacher: Teacher | None = None
    callbacks: tuple[TrainerCallback, ...] = ()
    """What else is to happen while it trains, such as a schedule of the method's own."""

    def __post_init__(self) -> None:
        if Need.LABELS in self.objective.needs and self.train.targets is None:
            raise InputError("the training examples have no labels; distill a fitted model (dense=..., distill=1)")
        if Need.TEACHER in self.objective.needs and self.teacher is None:
            raise InputError("the objective follows a teacher, and there is none; name a fitted model (dense=...)")


class StepTrainer(Trainer):
    """The Trainer's loop, optimizer, schedule, checkpoints and processes; one item of its data is one step."""

    def __init__(self, job: TrainingJob, settings: FitSettings, processes: Processes, checkpoints: Path) -> None:
        self.job = job
        self.processes = processes
        self.tokens = settings.tokens
        self.lengths = job.train.lengths
        self.items = job.train.items
        self.started = time.monotonic()
        self.seconds_before = 0.0
        self.interruption = Interruption(len(Steps(len(job.train), job.recipe.batch_size, job.seed)))
        super().__init__(
            model=job.model,
            args=training_arguments(job, settings, processes, checkpoints),
            train_dataset=range(len(job.train)),
            eval_dataset=range(1),  # ours is in `job.metrics`
            callbacks=[
                _OwnSeed(job.seed, processes),
                Progress(job.title, shown=processes.is_main and not settings.quiet),
                *([Patience(settings.patience)] if settings.patience is not None else []),
                *job.callbacks,
                self.interruption,
                Checkpoints(checkpoints, processes),
                _Clock(self),
            ],
        )
        self.remove_callback(PrinterCallback)

    def get_train_dataloader(self) -> Any:
        """Return the steps of an epoch; every process sees all of them and takes its share of each."""
        steps = Steps(len(self.job.train), self.job.recipe.batch_size, self.job.seed)
        # A generator of its own leaves the global one to dropout, so that a resumed run draws the same.
        return _StepLoader(
            range(len(self.job.train)),  # type: ignore[arg-type]
            batch_sampler=steps,
            collate_fn=self.collated,
            generator=torch.Generator(),
        )

    def collated(self, step: list[int]) -> dict[str, Any]:
        """Return this process's share of a step as micro-batches, and how many answers the whole step has."""
        share = share_of_step(step, self.lengths, self.processes.rank, self.processes.count, self.tokens)
        return {
            "micro_batches": [batch_of(self.job.train, indices) for indices in share.micro_batches],
            "items": int(self.items[step].sum()),
            "counted": share.counted,
        }

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """Accumulate the gradients of one step and return its mean loss, times processes over this one's part."""
        model.train()
        # Gradients are averaged over processes, which may hold different numbers of predictions.
        scale = inputs["counted"] * self.processes.count / max(inputs["items"], 1)
        total = torch.zeros((), device=self.args.device)
        for number, micro_batch in enumerate(inputs["micro_batches"]):
            is_last = number == len(inputs["micro_batches"]) - 1
            with nullcontext() if is_last else self.accelerator.no_sync(model):
                batch = replace(micro_batch.to(self.args.device), step=self.state.global_step)
                loss = self._loss(model, batch) * scale
                self.accelerator.backward(loss)
            total += loss.detach()
        return total

    def _loss(self, model: Any, batch: Batch) -> Tensor:
        """Return the summed loss of a micro-batch."""
        objective, teacher = self.job.objective, self.job.teacher
        with self.compute_loss_context_manager():
            outputs = outputs_of(model, batch, objective.needs)
        return objective(outputs, batch, None if teacher is None else teacher.outputs(batch))

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Measure quality on dev."""
        with _as_it_will_run(self.model):
            found = self.job.metrics(self.model)
        measures = {f"{metric_key_prefix}_{name}": value for name, value in found.items()}
        measures[SECONDS] = self.seconds_before + time.monotonic() - self.started
        self.log(dict(measures))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, measures)
        return measures

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Stop when the loss is no number any more: nothing good comes after that."""
        loss = logs.get("loss", 0.0)
        if not math.isfinite(loss):
            raise HasheeError(
                f"the loss became {loss} at step {self.state.global_step}; "
                f"use a learning rate below {self.job.recipe.learning_rate:g}, or no bf16"
            )
        super().log(logs, start_time)

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Leave counting to `hashee.hf.flops`, which knows about exits."""
        return 0


def training_arguments(job: TrainingJob, settings: FitSettings, processes: Processes, checkpoints: Path) -> TrainingArguments:
    """Translate a recipe into the Trainer's words."""
    recipe = job.recipe
    steps = math.ceil(recipe.epochs * len(Steps(len(job.train), recipe.batch_size, 0)))
    cadence = "epoch" if settings.eval_steps is None else "steps"
    arguments = TrainingArguments(
        output_dir=str(checkpoints),
        learning_rate=recipe.learning_rate,
        weight_decay=recipe.weight_decay,
        max_grad_norm=recipe.max_grad_norm,
        num_train_epochs=recipe.epochs,
        warmup_steps=recipe.warmup_ratio,  # below 1 it is a share of all steps
        lr_scheduler_type="linear",
        optim="adamw_torch_fused",  # one pass over the weights instead of a dozen, on processors too
        per_device_train_batch_size=max(1, recipe.batch_size // processes.count),
        bf16=settings.bf16,
        use_cpu=not torch.accelerator.is_available(),
        seed=job.seed,
        eval_strategy=cadence,
        eval_steps=settings.eval_steps,
        save_strategy=cadence,
        save_steps=settings.eval_steps or 500,
        metric_for_best_model=SCORE,
        greater_is_better=True,
        logging_steps=max(1, steps // 200),
        logging_nan_inf_filter=False,
        disable_tqdm=True,
        log_level="error",
        report_to=[],
        remove_unused_columns=False,
        dataloader_pin_memory=False,
        # Some heads leave a pooler unused; buffers (the exit table) never change.
        ddp_find_unused_parameters=True,
        ddp_broadcast_buffers=False,
    )
    if arguments.n_gpu > 1:
        # Without a launcher the Trainer would spread batches over threads, which is slow; torchrun is the way.
        arguments._n_gpu = 1
    return arguments


@contextmanager
def _as_it_will_run(model: Any) -> Iterator[None]:
    """Take away the autocast that accelerate puts around `forward`: quality is measured in full precision."""
    wrapped = model.__dict__.pop("forward", None)
    try:
        yield
    finally:
        if wrapped is not None:
            model.forward = wrapped


class Patience(TrainerCallback):
    """Stops when dev has not got better for a number of evaluations; all it knows is in the Trainer's history."""

    def __init__(self, evaluations: int) -> None:
        self.evaluations = evaluations

    def is_exhausted(self, state: TrainerState) -> bool:
        """Say whether the best score is that many evaluations old."""
        scores = [row[SCORE] for row in state.log_history if SCORE in row]
        return bool(scores) and len(scores) - 1 - scores.index(max(scores)) >= self.evaluations

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Ask for an end where it is due."""
        if self.is_exhausted(state):
            control.should_training_stop = True


class _OwnSeed(TrainerCallback):
    """Seeds dropout when training begins, whatever was computed before; each process draws its own."""

    def __init__(self, seed: int, processes: Processes) -> None:
        self.seed = (seed + 1_000_003 * processes.rank) % 2**32

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        set_seed(self.seed)


class _Clock(TrainerCallback):
    """Notes, when training begins, how long it took before it was interrupted, if it was."""

    def __init__(self, trainer: StepTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        done = [row[SECONDS] for row in state.log_history if SECONDS in row]
        self.trainer.seconds_before = float(done[-1]) if done else 0.0


class _StepLoader(DataLoader[Any]):
    """Hands the epoch on to the steps."""

    def set_epoch(self, epoch: int) -> None:
        self.batch_sampler.set_epoch(epoch)  # type: ignore[union-attr]
