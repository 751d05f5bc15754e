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
from dataclasses import dataclass
from pathlib import Path

from hashee.engine.native.store import Store, kept_path, opened_store
from hashee.engine.native.variants import Variant
from hashee.errors import HasheeError

log = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("kernels.c")
HEADERS = tuple(
    SOURCE.with_name(f"{name}.h")
    for name in (
        "vectors",
        "products",
        "elementwise",
        "attention",
        "int8_products",
        "int8_layers",
        "int8_kernels",
        "one_text",
        "training",
        "training_attention",
        "training_kernels",
    )
)
"""What the source includes of ours."""
# Without errno a square root is one instruction.
FLAGS = ("-O3", "-fno-math-errno", "-fopenmp", "-fPIC")
TIMEOUT = 60
"""Seconds after which a compiler counts as hanging; it takes about five."""


class CompileError(HasheeError):
    """A compiler that ran and failed, which may be able to compile for another instruction set."""


@dataclass(frozen=True)
class Opened:
    """A library that is loaded, and where it is from."""

    library: ctypes.CDLL
    path: Path | None
    """Where it is kept; None: nowhere."""
    is_new: bool
    """Whether it was compiled just now."""
    note: str | None = None
    """Why it is not kept."""


def open_library(functions: Iterable[str], variant: Variant) -> Opened:
    """Return a library with these functions, from the cache or compiled now; raise HasheeError if neither works.

    Without a usable cache folder it is compiled in every process.
    """
    names, key, note = list(functions), _key(variant), None
    with ExitStack() as stack:
        store: Store | None = None
        try:
            store = stack.enter_context(opened_store())
        except (HasheeError, OSError) as error:
            note = f"kernels cannot be kept and are compiled in every process: {error}"
            log.warning(note)
        for compiled in () if store is None else store.libraries(key):
            try:
                return Opened(_loaded(compiled, names), kept_path(key, compiled), is_new=False)
            except HasheeError as error:
                assert store is not None
                log.info("kept kernels are compiled again: %s", error)
                store.discard(key, compiled)
        compiled = _compiled(variant)
        library = _loaded(compiled, names)
        if store is not None:
            try:
                store.keep(key, compiled)
                return Opened(library, kept_path(key, compiled), is_new=True)
            except OSError as error:
                note = f"kernels cannot be kept and will be compiled again: {error}"
                log.warning(note)
        return Opened(library, None, is_new=True, note=note)


def _key(variant: Variant) -> str:
    """Return a digest of everything that a library depends on."""
    # Home folders are shared by machines with different C libraries.
    sources = [path.read_bytes() for path in (SOURCE, *HEADERS)]
    parts = (*sources, " ".join((*FLAGS, *variant.flags)).encode(), " ".join(platform.libc_ver()).encode())
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


def _compiled(variant: Variant) -> bytes:
    """Compile the source and return the library's bytes."""
    compiler = _compiler()
    try:
        with tempfile.TemporaryDirectory(prefix="hashee-") as folder:
            built, linked = Path(folder, "kernels.o"), Path(folder, "kernels.so")
            _run([*compiler, *FLAGS, *variant.flags, "-c", str(SOURCE), "-o", str(built)])
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
        raise CompileError(f"{command[0]} failed with {process.returncode}: {reason}")
