"""Where runs happen: in this process, in several side by side, or on a Ray cluster."""

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from hashee.cost.threads import torch_threads
from hashee.errors import HasheeError, InputError
from hashee.hf.pretrained import quiet_transformers
from hashee.study.results import RunResult
from hashee.study.run import Experiment, run_experiment
from hashee.training.stopping import Stopped

PROCESSES, RAY = "processes", "ray"

Outcome: TypeAlias = RunResult | HasheeError
Group: TypeAlias = Sequence[Experiment]
"""Runs that share a dense model, one after the other."""
Work: TypeAlias = Callable[[Group], Iterator[Outcome]]
"""Yields the outcome of each run of a group when it is there."""
Report: TypeAlias = Callable[[Experiment, Outcome], None]


@dataclass(frozen=True)
class Workers:
    """How many groups of runs are worked on at a time, where, and what each of them may use."""

    engine: str = PROCESSES
    """processes: on this machine; ray: on a Ray cluster."""
    jobs: int | None = None
    """Groups at a time; None: one process, or as many as the cluster has room for."""
    threads: int | None = None
    """Of each; None: the usable cores for a single process, otherwise 1."""
    address: str | None = None
    """Of a Ray cluster that is running; None: one on this machine, for as long as the runs take."""
    gpus: float = 0.0
    """That Ray reserves for each; fractions share one."""

    def __post_init__(self) -> None:
        if self.engine not in (PROCESSES, RAY):
            raise InputError(f"unknown engine {self.engine!r}; choose from {PROCESSES}, {RAY}")
        for name in ("jobs", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} is {value}; it must be at least 1")
        if self.gpus < 0:
            raise InputError(f"gpus is {self.gpus:g}; it must be at least 0")
        if self.engine != RAY and (self.address is not None or self.gpus):
            raise InputError("--address and --gpus are for Ray clusters; add --engine ray")

    @property
    def single(self) -> bool:
        """Whether everything runs in this process."""
        return self.engine == PROCESSES and self.jobs in (None, 1)


def outcomes_of(group: Group, output: Path, keep_models: bool, threads: int | None) -> Iterator[Outcome]:
    """Run a group and yield what comes of each run: its result, or why it failed."""
    with quiet_transformers(), torch_threads(threads):
        for experiment in group:
            try:
                outcome: Outcome = run_experiment(experiment, output, keep_models)
            except HasheeError as error:
                outcome = error
            yield outcome


def run_here(groups: Sequence[Group], work: Work, report: Report) -> None:
    """Run groups one after the other in this process."""
    for group in groups:
        for experiment, outcome in zip(group, work(group), strict=True):
            report(experiment, outcome)


def run_in_processes(groups: Sequence[Group], work: Work, report: Report, jobs: int) -> None:
    """Run groups in processes side by side."""
    # Forked processes would inherit torch's threads in whatever state they are.
    context = multiprocessing.get_context("spawn")
    waiting, running = deque(groups), dict[Future[list[Outcome]], Group]()
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        try:
            while waiting or running:
                # A group that the pool holds in advance would still be run after an interruption.
                while waiting and len(running) < jobs:
                    group = waiting.popleft()
                    running[pool.submit(_all_outcomes, work, group)] = group
                for done in wait(running, return_when=FIRST_COMPLETED).done:
                    for experiment, outcome in zip(running.pop(done), done.result(), strict=True):
                        report(experiment, outcome)
        except Stopped:
            # Ctrl-C reaches all processes of a terminal, SIGTERM this one only: trainings write a checkpoint and end.
            for child in multiprocessing.active_children():
                if child.pid is not None:
                    os.kill(child.pid, signal.SIGINT)
            raise


def _all_outcomes(work: Work, group: Group) -> list[Outcome]:
    return list(work(group))
