"""Compiling the kernels, and loading them from memory, so that exactly the bytes that were checked run."""

import ctypes
import hashlib
import logging
import os
import platform
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from hashee.engine.native.store import Store, opened_store
from hashee.errors import HasheeError

log = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("kernels.c")
HEADERS = (SOURCE.with_name("products.h"),)
"""What the source includes of ours."""
FLAGS = ("-O3", "-mavx2", "-mfma", "-fopenmp", "-fPIC")
TIMEOUT = 60
"""Seconds after which a compiler counts as hanging; it takes about two."""


def open_library(functions: Iterable[str]) -> ctypes.CDLL:
    """Return a library with these functions, from the cache or compiled now; raise HasheeError if neither works.

    Without a usable cache folder it is compiled in every process.
    """
    names, key = list(functions), _key()
    with ExitStack() as stack:
        store = _store(stack)
        for compiled in () if store is None else store.libraries(key):
            try:
                return _loaded(compiled, names)
            except HasheeError as error:
                assert store is not None
                log.info("kept kernels are compiled again: %s", error)
                store.discard(key, compiled)
        compiled = _compiled()
        library = _loaded(compiled, names)
        if store is not None:
            try:
                store.keep(key, compiled)
            except OSError as error:
                log.warning("kernels cannot be kept and will be compiled again: %s", error)
        return library


def _store(stack: ExitStack) -> Store | None:
    try:
        return stack.enter_context(opened_store())
    except (HasheeError, OSError) as error:
        log.warning("kernels cannot be kept and are compiled in every process: %s", error)
        return None


def _key() -> str:
    """Return a digest of everything that a library depends on."""
    # Home folders are shared by machines with different C libraries.
    sources = [path.read_bytes() for path in (SOURCE, *HEADERS)]
    parts = (*sources, " ".join(FLAGS).encode(), " ".join(platform.libc_ver()).encode())
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def _loaded(compiled: bytes, functions: Iterable[str]) -> ctypes.CDLL:
    """Load a library from its bytes."""
    try:
        # Never closed: the loader identifies libraries by path, and a reused descriptor would be the same path.
        descriptor = os.memfd_create("hashee-kernels")
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(compiled)
        library = ctypes.CDLL(f"/proc/{os.getpid()}/fd/{descriptor}")
    except (OSError, AttributeError) as error:
        raise HasheeError(f"the library cannot be loaded: {error}") from error
    missing = [name for name in functions if not hasattr(library, name)]
    if missing:
        raise HasheeError(f"the library lacks {', '.join(missing)}")
    return library


def _compiled() -> bytes:
    """Compile the source and return the library's bytes."""
    compiler = _compiler()
    try:
        with tempfile.TemporaryDirectory(prefix="hashee-") as folder:
            built, linked = Path(folder, "kernels.o"), Path(folder, "kernels.so")
            _run([*compiler, *FLAGS, "-c", str(SOURCE), "-o", str(built)])
            # Linked without OpenMP, so that it uses the OpenMP runtime, and its threads, that torch has loaded.
            _run([*compiler, "-shared", str(built), "-o", str(linked)])
            return linked.read_bytes()
    except OSError as error:
        raise HasheeError(f"{' '.join(compiler)}: {error}") from error


def _compiler() -> list[str]:
    try:
        chosen = shlex.split(os.environ.get("CC", ""))
    except ValueError as error:
        raise HasheeError(f"CC={os.environ['CC']!r}: {error}") from error
    found = chosen[0] if chosen else shutil.which("gcc") or shutil.which("cc")
    if found is None:
        raise HasheeError("there is no C compiler (gcc or cc, or set CC)")
    return chosen or [found]


def _run(command: list[str]) -> None:
    """Run a compiler, and raise if it fails or takes too long."""
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,  # what the compiler starts ends with it
    ) as process:
        try:
            _, said = process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired as error:
            raise HasheeError(f"{command[0]} did not end within {TIMEOUT} seconds") from error
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        reason = next(iter(said.strip().splitlines()), "")[:300]
        raise HasheeError(f"{command[0]} failed with {process.returncode}: {reason}")
