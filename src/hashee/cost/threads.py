"""How many threads a run may use, and how idle threads wait."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
"""Variables that set the number of threads of the libraries that multiply matrices, read when they are loaded."""
_CGROUPS = Path("/sys/fs/cgroup")
_WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""Variables that set how idle threads wait, in the different implementations of OpenMP."""


def usable_cores(cgroups: Path = _CGROUPS, own: Path = Path("/proc/self/cgroup")) -> int:
    """Return how many cores this process may use: those it may run on, or fewer by its container's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    # A fraction of a core is not worth a thread that the others would wait for.
    return max(1, int(min(cores, _granted(cgroups, own))))


def _granted(cgroups: Path, own: Path) -> float:
    """Return the quota of this process's control groups in cores; infinity if they set no limit."""
    granted = float("inf")
    for line in own.read_text(encoding="utf-8").splitlines() if own.exists() else ():
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "cpu", "cpu,cpuacct"):
            root = cgroups / controllers
            # Groups limit those below them; in a container the path may be the host's, of which only the top exists.
            group = root / path.lstrip("/")
            while group.is_relative_to(root):
                granted = min(granted, _quota(group))
                group = group.parent
    return granted


def _quota(group: Path) -> float:
    """Return the limit of one group in cores: cpu.max in version 2, two files in version 1."""
    try:
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text(encoding="utf-8").split()
        else:
            quota, period = (
                (group / f"cpu.cfs_{name}_us").read_text(encoding="utf-8").strip() for name in ("quota", "period")
            )
        return int(quota) / int(period) if quota != "max" and int(quota) > 0 else float("inf")
    except (OSError, ValueError, ZeroDivisionError):
        return float("inf")


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """Set torch's number of threads, and restore it afterwards.

    None: as many as it has now, but no more than usable cores unless OMP_NUM_THREADS is set.
    """
    import torch  # noqa: PLC0415  # `wait_passively` must run before torch is loaded

    before = torch.get_num_threads()
    if count is None:
        count = before if "OMP_NUM_THREADS" in os.environ else min(before, usable_cores())
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def wait_passively() -> bool:
    """Let idle threads of OpenMP sleep unless the environment sets how they wait; return whether that was done.

    By default they spin, and take cores from other threads: on a busy machine even from the thread that they wait for.
    OpenMP reads the setting once, when torch is loaded, so it must be set before. It is for training; measurements of
    speed leave the default.
    """
    if "torch" in sys.modules or any(name in os.environ for name in _WAITING):
        return False
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    return True
