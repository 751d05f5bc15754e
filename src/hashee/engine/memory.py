"""Where weights lie in memory."""

import ctypes
import mmap
import platform
from pathlib import Path

from torch import nn

LINE = 64
"""Bytes that a processor fetches together."""


def settle_(module: nn.Module) -> None:
    """Move weights on the processor that begin within a line of its cache to where one begins.

    Weights that were just mapped from a file do: its header has any length. From memory of their own, kernels on few
    rows read them in about three quarters of the time. Pages of the file are given back one weight after the other, so
    that both never lie in memory at once; nothing may have been written to them.
    """
    mapped = _mapped_files()
    for parameter in module.parameters():
        if type(parameter) is nn.Parameter and parameter.device.type == "cpu" and parameter.data_ptr() % LINE:
            start, size = parameter.data_ptr(), parameter.untyped_storage().nbytes()
            parameter.data = parameter.data.clone()
            if any(first <= start and start + size <= last for first, last in mapped):
                _give_back(start, start + size)


def _mapped_files() -> list[tuple[int, int]]:
    """Return where files of weights are mapped to, on systems that say so."""
    if platform.system() != "Linux":
        return []
    lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    spans = [line.split(maxsplit=1)[0].split("-") for line in lines if line.endswith(".safetensors")]
    return [(int(first, 16), int(last, 16)) for first, last in spans]


def _give_back(start: int, end: int) -> None:
    """Let the system take back the whole pages of a span that is mapped from a file; it reads them again if need be."""
    start, end = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
    if start < end:
        madvise = ctypes.CDLL(None).madvise
        madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        madvise(start, end - start, mmap.MADV_DONTNEED)
