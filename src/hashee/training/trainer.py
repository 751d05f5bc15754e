"""transformers' Trainer with steps of a fixed number of examples, cut by token cost, and quality measured on dev."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Sampler
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from hashee.data import Recipe
from hashee.data.tokenized import Tokenized
from hashee.errors import HasheeError, InputError
from hashee.training.callbacks import SCORE, SECONDS, DropoutSeed, Patience, Progress, StopWhenRequested
from hashee.training.objective import Objective
from hashee.training.outputs import Batch, Need, batch_of, outputs_of
from hashee.training.processes import Processes
from hashee.training.settings import FitSettings
from hashee.training.stopping import StopRequest
from hashee.training.teacher import Teacher


@dataclass(frozen=True)
class TrainingJob:
    """What is trained, on what, and how its quality is measured."""

    title: str
    model: Any
    saved: Any
    """What is written in the end: the model, or one that shares its parameters."""
    tokenizer: Any
    train: Tokenized
    objective: Objective
    recipe: Recipe
    seed: int
    dev_metrics: Callable[[Any], dict[str, float]]
    """From the model to its metrics on dev, `score` among them; all processes call it together."""
    teacher: Teacher | None = None
    rates: Mapping[str, float] = field(default_factory=dict)
    """How many times the recipe's rate parameters learn with, by the beginning of their names."""
    groups: NDArray[np.int64] | None = None
    """(examples,) numbers; those with the same one go through the model in the same step, or in neighbouring ones."""
    callbacks: tuple[TrainerCallback, ...] = ()
    """What else is to happen while it trains, such as a schedule of the method's own."""

    def __post_init__(self) -> None:
        if Need.LABELS in self.objective.needs and self.train.targets is None:
            raise InputError("the training examples have no labels; distill a fitted model (dense=..., distill=1)")
        if Need.TEACHER in self.objective.needs and self.teacher is None:
            raise InputError("the objective follows a teacher, and there is none; name a fitted model (dense=...)")


class Steps(Sampler[list[int]]):
    """The examples of each step of an epoch, in a new random order every epoch.

    All of it is a function of seed and epoch, so any number of processes takes the same steps, and a resumed run goes
    on with the same. Rows are packed without padding, so grouping texts by length would only make steps less random.
    """

    def __init__(self, examples: int, batch_size: int, seed: int, groups: NDArray[np.int64] | None = None) -> None:
        self.examples = examples
        self.batch_size = batch_size
        self.seed = seed
        self.groups = groups
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which decides the order; the Trainer calls it."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        random = np.random.default_rng([self.seed, self.epoch])
        order = random.permutation(self.examples)
        if self.groups is not None:
            ranks = random.permutation(int(self.groups.max()) + 1)
            order = order[np.argsort(ranks[self.groups[order]], kind="stable")]
        for first in range(0, self.examples, self.batch_size):
            yield order[first : first + self.batch_size].tolist()

    def __len__(self) -> int:
        return (self.examples + self.batch_size - 1) // self.batch_size


@dataclass(frozen=True)
class Share:
    """What one process does of a step."""

    micro_batches: list[list[int]]
    """Indices of the examples that go through the model together."""
    counted: bool
    """False if there were fewer examples than processes: this one runs an example whose gradient does not count."""


def share_of_step(step: Sequence[int], lengths: NDArray[np.int64], rank: int, count: int, tokens: int) -> Share:
    """Give each process equally many examples (one more for the first ones) of like cost, cut into micro-batches.

    lengths: (all examples,) tokens of each. tokens: of a micro-batch at the most; a longer text is one of its own.
    """
    # Dealt in rounds of alternating direction, so that no process always gets the longer one.
    ranked = sorted(step, key=lambda index: (-int(lengths[index]), index))
    mine = [
        index
        for number, index in enumerate(ranked)
        if (number % count if number // count % 2 == 0 else count - 1 - number % count) == rank
    ]
    counted = bool(mine)
    micro_batches: list[list[int]] = []
    room = 0
    for index in mine or ranked[-1:]:
        if not micro_batches or lengths[index] > room:
            micro_batches.append([])
            room = tokens
        micro_batches[-1].append(index)
        room -= int(lengths[index])
    return Share(micro_batches, counted)


class StepTrainer(Trainer):
    """The Trainer with its loop, optimizer, schedule, checkpoints and processes; its data loader yields whole steps."""

    def __init__(self, job: TrainingJob, settings: FitSettings, processes: Processes, checkpoints: Path) -> None:
        self.job = job
        self.processes = processes
        self.tokens = settings.tokens
        self.lengths = job.train.lengths
        self.items = job.train.items
        self.started = time.monotonic()
        self.seconds_before = 0.0
        self.stop_request = StopRequest()
        super().__init__(
            model=job.model,
            args=training_arguments(job, settings, processes, checkpoints),
            train_dataset=range(len(job.train)),
            eval_dataset=range(1),  # `evaluate` calls `job.dev_metrics`
            callbacks=[
                DropoutSeed(job.seed, processes),
                Progress(job.title, shown=processes.is_main and not settings.quiet),
                *([Patience(settings.patience)] if settings.patience is not None else []),
                *job.callbacks,
                StopWhenRequested(self.stop_request, len(Steps(len(job.train), job.recipe.batch_size, job.seed))),
                _ElapsedSeconds(self),
            ],
        )
        self.remove_callback(PrinterCallback)

    def get_train_dataloader(self) -> Any:
        """Return the steps of an epoch; every process sees all of them and takes its share of each."""
        steps = Steps(len(self.job.train), self.job.recipe.batch_size, self.job.seed, self.job.groups)
        # A generator of its own leaves the global one to dropout, so that a resumed run draws the same.
        return _StepLoader(
            range(len(self.job.train)),  # type: ignore[arg-type]
            batch_sampler=steps,
            collate_fn=self.collated,
            generator=torch.Generator(),
        )

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """Return the Trainer's optimizer, with groups of their own for parameters that have other rates."""
        made: torch.optim.Optimizer = super().create_optimizer(model)
        trained: Any = self.model if model is None else model
        named = dict(trained.named_parameters())
        for beginning, times in self.job.rates.items():
            chosen = {id(weight) for name, weight in named.items() if name.startswith(beginning)}
            for group in list(made.param_groups):
                faster = [weight for weight in group["params"] if id(weight) in chosen]
                if faster:
                    group["params"] = [weight for weight in group["params"] if id(weight) not in chosen]
                    made.add_param_group({**group, "params": faster, "lr": times * group["lr"]})
        return made

    def collated(self, step: list[int]) -> dict[str, Any]:
        """Return this process's share of a step as micro-batches, and how many predictions the whole step has."""
        share = share_of_step(step, self.lengths, self.processes.rank, self.processes.count, self.tokens)
        return {
            "micro_batches": [batch_of(self.job.train, indices) for indices in share.micro_batches],
            "items": int(self.items[step].sum()),
            "counted": share.counted,
        }

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """Accumulate the gradients of one step and return this process's part of the mean loss, times the processes."""
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
        """Evaluate the model on dev."""
        with _full_precision(self.model):
            found = self.job.dev_metrics(self.model)
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in found.items()}
        metrics[SECONDS] = self.seconds_before + time.monotonic() - self.started
        self.log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Raise when the loss is no longer finite, from which no training recovers."""
        loss = logs.get("loss", 0.0)
        if not math.isfinite(loss):
            raise HasheeError(
                f"the loss became {loss} at step {self.state.global_step}; "
                f"use a learning rate below {self.job.recipe.learning_rate:g}, or no bf16"
            )
        super().log(logs, start_time)

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Count nothing: `hashee.hf.flops` does, which knows about exits."""
        return 0


def training_arguments(
    job: TrainingJob, settings: FitSettings, processes: Processes, checkpoints: Path
) -> TrainingArguments:
    """Return a recipe as the Trainer's arguments."""
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
        # Without a launcher the Trainer would spread batches over threads, which is slow; use torchrun instead.
        arguments._n_gpu = 1
    return arguments


@contextmanager
def _full_precision(model: Any) -> Iterator[None]:
    """Take away the autocast that accelerate puts around `forward`: quality is measured in full precision."""
    wrapped = model.__dict__.pop("forward", None)
    try:
        yield
    finally:
        if wrapped is not None:
            model.forward = wrapped


class _ElapsedSeconds(TrainerCallback):
    """Reads, when training begins, how long a resumed training took before."""

    def __init__(self, trainer: StepTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        done = [row[SECONDS] for row in state.log_history if SECONDS in row]
        self.trainer.seconds_before = float(done[-1]) if done else 0.0


class _StepLoader(DataLoader[Any]):
    """Tells the sampler which epoch it is."""

    def set_epoch(self, epoch: int) -> None:
        self.batch_sampler.set_epoch(epoch)  # type: ignore[union-attr]
