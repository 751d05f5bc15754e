"""The machine of a measurement: hardware, threads and versions."""

import platform
import resource
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from hashee.cost.threads import usable_cores as usable_cores  # noqa: PLC0414  # imported from here, too

INSTRUCTION_SETS = ("avx2", "avx512f", "avx_vnni", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8", "asimd", "sve")
"""Those that matter to matrix products, as /proc/cpuinfo calls them."""
PACKAGES = ("hashee", "torch", "transformers", "numpy", "onnxruntime", "openvino", "nncf", "sentence-transformers")


def describe_machine(threads: int) -> dict[str, Any]:
    """Return processor, cores, memory, versions, commit and date as JSON values; None for what is missing."""
    return {
        "cpu": _cpu_model(),
        "cores": usable_cores(),
        "threads": threads,
        "memory_mb": round(memory_mb("MemTotal") or 0),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
        "commit": _commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def memory_mb(field: str) -> float | None:
    """Return a line of /proc/meminfo (MemTotal, MemAvailable) in 10^6 bytes, if the system has it."""
    path = Path("/proc/meminfo")
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024 / 1e6
    return None


def instruction_sets() -> str:
    """Return the vector instructions of the processor, such as `avx2 avx512f`; empty if the system does not say."""
    return " ".join(filter(has_instructions, INSTRUCTION_SETS))


def has_instructions(name: str) -> bool:
    """Return whether the processor has an instruction set, as /proc/cpuinfo calls it; False where that is unknown."""
    return name in (_cpu_field("flags") or _cpu_field("Features") or "").split()


def _cpu_model() -> str:
    return _cpu_field("model name") or platform.processor() or platform.machine()


def _cpu_field(name: str) -> str | None:
    """Return a field of the first processor in /proc/cpuinfo, if the system has it."""
    path = Path("/proc/cpuinfo")
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith(name):
                return line.partition(":")[2].strip()
    return None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """Return the commit of the source tree, with + if files differ from it."""
    folder = Path(__file__).parent
    if not any((parent / ".git").exists() for parent in folder.parents):
        return None
    git = ["git", "-C", str(folder)]
    try:
        commit = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True)
        changes = subprocess.run([*git, "status", "--porcelain", "."], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit.stdout.strip() + ("+" if changes.stdout.strip() else "")


def peak_memory_mb() -> float:
    """Return the peak of this process's resident memory in 10^6 bytes."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / 1e6
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6
