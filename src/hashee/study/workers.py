"""Where runs happen: in this process, in several side by side, or on a Ray cluster."""

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeAlias

from hashee.cost.threads import torch_threads
from hashee.errors import HasheeError, InputError
from hashee.hf.pretrained import quiet_transformers
from hashee.study.results import RunResult
from hashee.study.run import Experiment, run_experiment
from hashee.training.stopping import STOPS

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
    """Run groups in processes side by side; a process that dies fails the run that it was at, and the rest go on."""
    waiting, running = deque(groups), dict[Connection, _Child]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                child = _Child.started(work, waiting.popleft())
                running[child.outcomes] = child
            for outcomes in connection.wait(list(running)):
                assert isinstance(outcomes, Connection)
                child = running[outcomes]
                try:
                    outcome: Outcome = outcomes.recv()
                except EOFError:
                    del running[outcomes]
                    if (died := child.ended()) is not None:
                        report(child.left.popleft(), died)
                    if child.left:
                        waiting.appendleft(list(child.left))
                else:
                    report(child.left.popleft(), outcome)
    except STOPS:
        # Ctrl-C reaches all processes of a terminal, SIGTERM this one only: trainings write a checkpoint and end.
        for child in running.values():
            if child.process.pid is not None and child.process.is_alive():
                os.kill(child.process.pid, signal.SIGINT)
        raise
    finally:
        for child in running.values():
            child.process.join()


@dataclass(frozen=True)
class _Child:
    """A process that runs a group."""

    process: multiprocessing.process.BaseProcess
    outcomes: Connection
    """Its end, one outcome for each run."""
    left: deque[Experiment]
    """Runs without an outcome, the one that it is at first."""

    @classmethod
    def started(cls, work: Work, group: Group) -> "_Child":
        # Forked processes would inherit torch's threads in whatever state they are.
        context = multiprocessing.get_context("spawn")
        outcomes, sender = context.Pipe(duplex=False)
        process = context.Process(target=_send_outcomes, args=(work, group, sender))
        process.start()
        sender.close()  # so that the other end is closed when the process has ended
        return cls(process, outcomes, deque(group))

    def ended(self) -> HasheeError | None:
        """Wait for the end of the process, and return why the run that it was at has no outcome."""
        self.process.join()
        self.outcomes.close()
        if not self.left:
            return None
        code = self.process.exitcode or 0
        reason = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return HasheeError(f"its process died ({reason}); if memory is short, run fewer side by side (--jobs)")


def _send_outcomes(work: Work, group: Group, sender: Connection) -> None:
    with sender, suppress(*STOPS):
        for outcome in work(group):
            sender.send(outcome)
