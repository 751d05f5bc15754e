"""Weights aligned to cache lines."""

import ctypes
import mmap
import platform
from pathlib import Path

from torch import nn

CACHE_LINE = 64
"""Bytes that a processor fetches together."""


def align_(module: nn.Module) -> None:
    """Copy weights on the CPU that do not start at a cache line to memory that does.

    Weights that are mapped from a file often do not: the file's header has any length. Kernels on few rows read aligned
    weights in about three quarters of the time. Pages of the file are released after each weight, so that no two copies
    of the model are in memory at once; nothing may have been written to them.
    """
    mapped = _mapped_files()
    for parameter in module.parameters():
        if type(parameter) is nn.Parameter and parameter.device.type == "cpu" and parameter.data_ptr() % CACHE_LINE:
            start, size = parameter.data_ptr(), parameter.untyped_storage().nbytes()
            parameter.data = parameter.data.clone()
            if any(first <= start and start + size <= last for first, last in mapped):
                _release_pages(start, start + size)


def _mapped_files() -> list[tuple[int, int]]:
    """Return the address ranges that safetensors files are mapped to; none on systems that do not tell."""
    if platform.system() != "Linux":
        return []
    lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    spans = [line.split(maxsplit=1)[0].split("-") for line in lines if line.endswith(".safetensors")]
    return [(int(first, 16), int(last, 16)) for first, last in spans]


def _release_pages(start: int, end: int) -> None:
    """Let the system drop the whole pages of a range that is mapped from a file; it reads them again on access."""
    start, end = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
    if start < end:
        madvise = ctypes.CDLL(None).madvise
        madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        madvise(start, end - start, mmap.MADV_DONTNEED)
