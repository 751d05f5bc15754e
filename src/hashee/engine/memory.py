"""Weights in memory: aligned to cache lines, without pages kept for nothing, and checksums that tell of changes."""

import ctypes
import mmap
import platform
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import xxhash
from torch import Tensor, nn

CACHE_LINE = 64
"""Bytes that a processor fetches together."""


_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4
"""Options of glibc's mallopt."""
_USUAL = {_MMAP_MAX: 1 << 16, _MMAP_THRESHOLD: 32 << 20, _TRIM_THRESHOLD: 64 << 20}
"""What a process that frees large blocks comes to have by itself; an option that is set is no longer adjusted."""

Range = tuple[int, int]
"""Addresses: the first, and the one after the last."""


def align_(module: nn.Module) -> None:
    """Copy weights on the CPU that do not start at a cache line to memory that does.

    Weights that are mapped from a file often do not: the file's header has any length. Kernels on few rows read aligned
    weights in about three quarters of the time. Pages of the file are released after each weight, so that no two copies
    of the model are in memory at once.
    """
    mapped = unchanged_mappings()
    for parameter in module.parameters():
        if type(parameter) is nn.Parameter and parameter.device.type == "cpu" and parameter.data_ptr() % CACHE_LINE:
            before = parameter.data
            parameter.data = before.clone()
            release(before, mapped)


def is_readable(weight: Tensor) -> bool:
    """Return whether the numbers of a weight lie in memory as they are, so that a checksum of them can be taken."""
    return (
        type(weight) in (Tensor, nn.Parameter)
        and weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and weight.is_contiguous()
    )


def checksums(weights: Iterable[Tensor]) -> tuple[int, ...]:
    """Return a checksum of each weight; no counter of torch's tells of all the ways in which weights change."""
    return tuple(xxhash.xxh3_64_intdigest(weight.detach().numpy().data) for weight in weights)


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Let the process keep the memory that it frees meanwhile, where the C library is glibc.

    A training step takes and frees hundreds of megabytes, and the system clears every page that it hands out anew,
    which takes longer than to fill it.
    """
    if platform.libc_ver()[0] != "glibc":
        yield
        return
    library = ctypes.CDLL(None)
    library.mallopt(_MMAP_MAX, 0)
    library.mallopt(_TRIM_THRESHOLD, ctypes.c_int(2**31 - 1))
    try:
        yield
    finally:
        for option, value in _USUAL.items():
            library.mallopt(option, value)
        library.malloc_trim(0)


def unchanged_mappings() -> list[Range]:
    """Return where safetensors files are mapped to memory that nobody has written to; none if the system is silent."""
    path = Path("/proc/self/smaps")
    if platform.system() != "Linux" or not path.exists():
        return []
    found: list[Range] = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        name, _, value = line.partition(":")
        if line.endswith(".safetensors"):
            first, _, last = line.split(maxsplit=1)[0].partition("-")
            found.append((int(first, 16), int(last, 16)))
            is_file = True
        elif " " in name:
            is_file = False  # the header of another mapping
        elif name in ("Private_Dirty", "Shared_Dirty", "Swap") and found and is_file and value.split()[0] != "0":
            found.pop()
            is_file = False
    return found


def release(tensor: Tensor, mapped: list[Range]) -> None:
    """Let the system drop the pages of a tensor that is in one of these mappings; it reads them again on access."""
    start = tensor.data_ptr()
    end = start + tensor.untyped_storage().nbytes()
    if not any(first <= start and end <= last for first, last in mapped):
        return
    start, end = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
    if start < end:
        madvise = ctypes.CDLL(None).madvise
        madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        madvise(start, end - start, mmap.MADV_DONTNEED)
