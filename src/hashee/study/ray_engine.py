"""Runs on a Ray cluster: a task for each group of runs, with results and models in a folder that all nodes share."""

import os
import signal
import socket
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from hashee.cost.threads import usable_cores
from hashee.data.registry import registered
from hashee.errors import HasheeError, InputError
from hashee.packages import require
from hashee.study.results import PATHS
from hashee.study.run import Experiment
from hashee.study.workers import Group, Outcome, Report, Work, Workers
from hashee.training.settings import EMBEDDED
from hashee.training.stopping import StopRequest

_OF_RAY = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}
"""Ray's own settings, unless the environment has others: nothing is reported to its makers, and below `uv run` the
working folder, results and models included, is not uploaded."""
_FORWARDED = ("HF_HOME", "HF_HUB_OFFLINE", "OMP_WAIT_POLICY")
"""Variables that workers have as this process has them; beside them `HASHEE_DATA`."""
_REACHABLE = 10.0
"""Seconds in which a cluster answers."""
_LOOK_UP = 1.0
"""Seconds after which a signal is noticed; Ray does not let every exception of a handler through."""
_GRACE = 120.0
"""Seconds in which tasks that are told to stop may write a checkpoint."""


@dataclass
class _Task:
    """A group that was handed to Ray."""

    stream: Any
    """Of references to outcomes, one for each run when it is there."""
    left: deque[Experiment]
    """Runs whose outcomes are still to come."""


def run_on_ray(groups: Sequence[Group], work: Work, report: Report, folder: Path, workers: Workers) -> None:
    """Run groups as tasks of a Ray cluster; a worker that dies fails its run, and the rest of its group goes on.

    folder: of results, which all nodes must see under the same path; it is checked, and nothing is uploaded.
    """
    ray = require_ray()
    stop = StopRequest()
    with connected(ray, workers), sign_in(folder) as sign, stop.listening(alone=True):
        options = {"num_cpus": workers.threads or 1, "num_gpus": workers.gpus}
        remote = ray.remote(_on_a_node).options(
            max_retries=0, runtime_env={"env_vars": forwarded_environment()}, **options
        )
        waiting = deque([with_absolute_paths(each) for each in group] for group in groups)
        running: list[_Task] = []
        try:
            while (waiting or running) and not stop.requested:
                while waiting and len(running) < (workers.jobs or len(groups)):
                    group = waiting.popleft()
                    running.append(_Task(remote.remote(group, work, sign), deque(group)))
                ready, _ = ray.wait([task.stream for task in running], num_returns=1, timeout=_LOOK_UP)
                for task in [task for task in running if ready and task.stream is ready[0]]:
                    running.remove(task)
                    waiting.extendleft(_next_outcome(ray, task, running, report))
        finally:
            _cancel(ray, [task.stream for task in running])


def require_ray() -> Any:
    """Import Ray with our settings of it."""
    os.environ.update({name: value for name, value in _OF_RAY.items() if name not in os.environ})
    return require("ray", "ray", "--engine ray")


def _next_outcome(ray: Any, task: _Task, running: list[_Task], report: Report) -> list[list[Experiment]]:
    """Report the next run of a task that is ready, which goes on running unless it has ended.

    Returns what must be started anew: the runs after one whose worker died, as one group.
    """
    try:
        outcome = ray.get(next(task.stream))
    except StopIteration:
        return []
    except ray.exceptions.RayError as error:
        # The worker is gone, or has met an error that is not ours; other runs may not.
        report(task.left.popleft(), _failure(error))
        return [list(task.left)] if task.left else []
    running.append(task)
    report(task.left.popleft(), outcome)
    return []


def _on_a_node(group: Group, work: Work, sign: Path) -> Iterator[Outcome]:
    """Run a group on a node that shares the folder of results; anywhere else its results would be lost."""
    if sign.exists():
        yield from work(group)
    else:
        node = os.uname().nodename
        reason = f"{node} of the Ray cluster does not see {sign.parent}; choose an --output that all nodes share"
        yield from (InputError(reason) for _ in group)


@contextmanager
def connected(ray: Any, workers: Workers) -> Iterator[None]:
    """Connect to the cluster, or start one on this machine that ends with the runs; one that is connected is used."""
    if workers.address is not None:
        _refuse_unreachable(workers.address)
    if ray.is_initialized():
        yield
        return
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    terminated = signal.getsignal(signal.SIGTERM)
    try:
        if workers.address is None:
            threads = workers.threads or 1
            jobs = workers.jobs or max(1, usable_cores() // threads)
            ray.init(address="local", num_cpus=jobs * threads, include_dashboard=False, **quiet)
        else:
            ray.init(address=workers.address, **quiet)
    except (ConnectionError, RuntimeError, ValueError) as error:
        where = "can be started here" if workers.address is None else f"answers at {workers.address}"
        raise InputError(f"no Ray cluster {where}: {_first_line(error)}") from error
    try:
        # Ray puts a handler of its own in place of the command's.
        if signal.getsignal(signal.SIGTERM) is not terminated:
            signal.signal(signal.SIGTERM, terminated)
        _refuse_what_never_fits(ray, workers)
        yield
    finally:
        ray.shutdown()


def _refuse_unreachable(address: str) -> None:
    """Say at once where nobody listens; Ray itself tries for minutes."""
    if "://" in address:
        raise InputError(f"{address} is not HOST:PORT; run this on a node of the cluster with --address auto")
    host, _, port = address.rpartition(":")
    if not (host and port.isdigit()):
        return  # a name that Ray knows, such as auto
    try:
        socket.create_connection((host, int(port)), timeout=_REACHABLE).close()
    except (OSError, OverflowError) as error:
        raise InputError(f"no Ray cluster answers at {address} ({error}); `ray status` shows where yours is") from None


def _refuse_what_never_fits(ray: Any, workers: Workers) -> None:
    """Say at once that tasks would wait for ever; clusters that were there before may still grow."""
    there = ray.cluster_resources().get("GPU", 0)
    if workers.address is None and workers.gpus > there:
        raise InputError(f"a run is to have {workers.gpus:g} GPUs, but Ray finds {there:g} here; lower --gpus")


@contextmanager
def sign_in(folder: Path) -> Iterator[Path]:
    """Put a file into a folder, by which nodes tell that it is the same folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=folder.absolute(), prefix=".runs-on-ray-") as file:
        yield Path(file.name)


def with_absolute_paths(experiment: Experiment) -> Experiment:
    """Return an experiment that means the same in another working folder."""
    task, backbone = experiment.task, experiment.backbone
    if isinstance(task, str) and registered(task) is None:
        task = _absolute(task)
    paths = {name: _absolute(str(experiment.settings[name])) for name in PATHS if experiment.settings.get(name)}
    backbone = backbone if backbone == EMBEDDED else _absolute(backbone)
    return replace(experiment, task=task, backbone=backbone, settings=experiment.settings | paths)


def _absolute(name: str) -> str:
    """Return the absolute path of what is there; other names are of the Hub."""
    return str(Path(name).absolute()) if Path(name).exists() else name


def forwarded_environment() -> dict[str, str]:
    """Return variables that runs depend on, of which a cluster that is running knows nothing."""
    found = {name: os.environ[name] for name in _FORWARDED if name in os.environ}
    data = os.environ.get("HASHEE_DATA")
    return found | ({"HASHEE_DATA": _absolute(data)} if data else {})


def _failure(error: Exception) -> HasheeError:
    """Return an error of Ray as one of ours: what the run itself raised, or what became of its worker."""
    cause = getattr(error, "cause", None)
    reason = f"the worker died: {_first_line(error)}" if cause is None else f"{type(cause).__name__}: {cause}"
    failure = HasheeError(f"on Ray, {reason}")
    failure.__cause__ = error
    return failure


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _cancel(ray: Any, streams: list[Any]) -> None:
    """Stop tasks as Ctrl-C does: those that wait never start, those that train write a checkpoint first."""
    for stream in streams:
        ray.cancel(stream)
    if streams:
        ray.wait([stream.completed() for stream in streams], num_returns=len(streams), timeout=_GRACE)
