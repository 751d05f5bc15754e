"""Kernels come from a private folder, are checked before they run, and compiled again if anything is wrong."""

import hashlib
import os
import re
import resource
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from hashee.engine import native
from hashee.engine.native import compiler
from hashee.engine.native.variants import VARIANTS

pytestmark = pytest.mark.skipif(
    native.library() is None or not shutil.which("gcc"), reason="no compiler or no AVX2: everything runs in torch"
)

SOURCE = Path(native.__file__).with_name("kernels.c")

PROGRAM = """
import torch
from hashee.engine import native
kernels = native.library()
rows, weight = torch.ones(2, 8), torch.ones(3, 8)
print("no kernels" if kernels is None else native.linear(rows, weight, None).tolist())
"""
EXPECTED = str([[8.0] * 3] * 2)


def make_compiler(folder: Path, script: str) -> Path:
    path = folder / "compiler"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The folder that kernels are kept in, which does not exist yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # Optimizing takes most of the time.
    monkeypatch.setenv("CC", str(make_compiler(tmp_path, 'exec gcc $(echo "$@" | sed s/-O3/-O0/)')))
    native.kernels.cache_clear()
    yield tmp_path / "cache" / "hashee"
    native.kernels.cache_clear()


@pytest.fixture
def marker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The file that a planted library makes when it is loaded."""
    monkeypatch.setenv("HASHEE_TEST_MARKER", str(tmp_path / "the planted library was loaded"))
    return tmp_path / "the planted library was loaded"


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A library with all our functions that does something else as well when it is loaded."""
    folder = tmp_path_factory.mktemp("planted")
    (folder / "planted.c").write_text(
        f'#include "{SOURCE}"\n#include <stdio.h>\n#include <stdlib.h>\n'
        "__attribute__((constructor)) static void mark(void) {\n"
        '    const char *path = getenv("HASHEE_TEST_MARKER");\n'
        '    if (path) fclose(fopen(path, "w"));\n}\n'
    )
    command = ["gcc", "-O1", "-mavx2", "-mfma", "-fopenmp", "-fPIC", "-c", "planted.c", "-o", "planted.o"]
    subprocess.run(command, cwd=folder, check=True)
    subprocess.run(["gcc", "-shared", "planted.o", "-o", "planted.so"], cwd=folder, check=True)
    return (folder / "planted.so").read_bytes()


def foreign_library(folder: Path) -> bytes:
    """Return a library that has none of our functions."""
    (folder / "foreign.c").write_text("int foreign(void) { return 1; }\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "foreign.c", "-o", "foreign.so"], cwd=folder, check=True)
    return (folder / "foreign.so").read_bytes()


def libraries(folder: Path) -> list[Path]:
    return sorted(folder.glob("kernels-*.so"))


def reopen() -> None:
    """Open the library again, as another process would, and check that it works."""
    native.kernels.cache_clear()
    assert native.library() is not None
    rows, weight = torch.randn(2, 8), torch.randn(3, 8)
    assert torch.allclose(native.linear(rows, weight, None), F.linear(rows, weight), atol=1e-5)


def under_its_digest(path: Path, content: bytes) -> Path:
    """Put other content into a kept library, under the name that it would have been kept under."""
    digest = hashlib.sha256(content).hexdigest()
    name = "-".join([*path.stem.split("-")[:2], digest]) + ".so" if path.stem.count("-") > 1 else path.name
    path.unlink()
    path.with_name(name).write_bytes(content)
    return path.with_name(name)


def start(program: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ.copy(),
    )


def test_kernels_are_kept_in_a_private_folder_and_compiled_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reopen()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (kept,) = libraries(folder)
    assert stat.S_IMODE(kept.stat().st_mode) & 0o077 == 0
    monkeypatch.setenv("CC", "false")
    reopen()


def damage(kept: Path, how: str, folder: Path) -> None:
    if how == "cut short":
        os.truncate(kept, 5000)
    elif how == "empty":
        os.truncate(kept, 0)
    else:
        content = foreign_library(folder) if how.startswith("without our functions") else b"not a library"
        kept.unlink()
        kept.write_bytes(content)
        if how.endswith("under its digest"):
            under_its_digest(kept, content)


@pytest.mark.parametrize("how", ["cut short", "without our functions"])
def test_a_damaged_library_does_not_end_the_process(folder: Path, tmp_path: Path, how: str) -> None:
    reopen()
    (kept,) = libraries(folder)
    compiled = kept.read_bytes()
    damage(kept, how, tmp_path)
    process = start(PROGRAM)
    said, errors = process.communicate(timeout=240)
    assert (process.returncode, said.strip()) == (0, EXPECTED), errors
    assert [path.read_bytes() for path in libraries(folder)] == [compiled]


@pytest.mark.parametrize("how", ["empty", "without our functions, under its digest", "text, under its digest"])
def test_a_damaged_library_is_compiled_again(folder: Path, tmp_path: Path, how: str) -> None:
    reopen()
    (kept,) = libraries(folder)
    compiled = kept.read_bytes()
    damage(kept, how, tmp_path)
    reopen()
    assert [path.read_bytes() for path in libraries(folder)] == [compiled]


@pytest.mark.parametrize("what", ["folder", "file"])
def test_what_others_could_have_written_is_not_loaded(folder: Path, what: str, planted: bytes, marker: Path) -> None:
    reopen()
    path = under_its_digest(libraries(folder)[0], planted)
    path.chmod(0o777)
    folder.chmod(0o777 if what == "folder" else 0o700)
    process = start(PROGRAM)
    said, errors = process.communicate(timeout=240)
    assert not marker.exists()
    assert (process.returncode, said.strip()) == (0, EXPECTED), errors
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert planted not in [path.read_bytes() for path in libraries(folder)]


def test_the_planted_library_would_be_noticed(folder: Path, planted: bytes, marker: Path) -> None:
    reopen()
    under_its_digest(libraries(folder)[0], planted).chmod(0o600)
    reopen()
    assert marker.exists()


@pytest.mark.parametrize("what", ["folder", "file"])
def test_symbolic_links_are_not_followed(
    folder: Path, tmp_path: Path, what: str, planted: bytes, marker: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reopen()
    path = under_its_digest(libraries(folder)[0], planted)
    path.chmod(0o600)
    elsewhere = tmp_path / "elsewhere"
    if what == "folder":
        folder.rename(elsewhere)
        folder.symlink_to(elsewhere)
    else:
        path.rename(elsewhere)
        path.symlink_to(elsewhere)
    reopen()
    assert not marker.exists()
    if what == "folder":
        assert f"{folder} is a symbolic link" in caplog.text


def test_a_folder_of_another_user_is_not_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reopen()
    under_its_digest(libraries(folder)[0], b"not a library")
    uid = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    reopen()
    assert f"belongs to user {uid}, not to {uid + 1}" in caplog.text
    assert [path.read_bytes() for path in libraries(folder)] == [b"not a library"]


def test_processes_that_compile_at_once_do_not_disturb_each_other(folder: Path) -> None:
    processes = [start(PROGRAM) for _ in range(2)]
    for process in processes:
        said, errors = process.communicate(timeout=240)
        assert (process.returncode, said.strip()) == (0, EXPECTED), errors
    assert libraries(folder) and {path.name for path in folder.iterdir()} == {path.name for path in libraries(folder)}


@pytest.mark.parametrize("obstacle", ["a file of that name", "no such device", "no home"])
def test_kernels_are_compiled_in_every_process_where_they_cannot_be_kept(
    folder: Path, obstacle: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if obstacle == "a file of that name":
        folder.parent.mkdir()
        folder.write_text("")
    elif obstacle == "no such device":
        monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")  # not even root can make a folder there
    else:
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.delenv("HOME")
        monkeypatch.setattr(os, "getuid", lambda: 2**31 - 5)  # a user without an entry, as in containers
    reopen()
    assert "kernels cannot be kept and are compiled in every process" in caplog.text


def test_a_folder_that_vanishes_while_compiling(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compiler = make_compiler(tmp_path, f'rm -rf "{folder}"\nexec gcc "$@"')
    monkeypatch.setenv("CC", str(compiler))
    reopen()
    assert "kernels cannot be kept and will be compiled again" in caplog.text


def test_a_full_disk(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        assert native.library() is None
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "no compiled kernels" in caplog.text
    assert not any(folder.iterdir())


LAST_ARGUMENT = "for last; do :; done"
"""Where a compiler is told to write to."""


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo out of order >&2; exit 3", "failed with 3: out of order"),
        ("exit 0", "No such file"),
        (f'{LAST_ARGUMENT}; gcc -shared -x c /dev/null -o "$last"', "the library lacks hashee_linear"),
        (f'{LAST_ARGUMENT}; echo nonsense > "$last"', "cannot be loaded"),
    ],
    ids=["fails", "writes nothing", "writes another library", "writes no library"],
)
def test_a_compiler_that_fails(
    folder: Path,
    tmp_path: Path,
    script: str,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("CC", str(make_compiler(tmp_path, script)))
    assert native.library() is None
    assert "no compiled kernels" in caplog.text and reason in caplog.text
    assert not any(folder.iterdir())


def test_a_compiler_that_hangs_is_ended_with_all_that_it_started(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compiler = make_compiler(tmp_path, f'sleep 300 &\necho $! > "{tmp_path}/child"\nwait')
    monkeypatch.setenv("CC", str(compiler))
    monkeypatch.setattr(sys.modules["hashee.engine.native.compiler"], "TIMEOUT", 1)
    began = time.monotonic()
    assert native.library() is None
    assert time.monotonic() - began < 30
    assert "did not end within 1 seconds" in caplog.text
    state = Path(f"/proc/{int((tmp_path / 'child').read_text())}/stat")
    assert not state.exists() or state.read_text().split()[2] == "Z"


def test_a_compiler_with_options(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "gcc -g0")
    reopen()
    assert libraries(folder)


def test_a_compiler_that_cannot_be_read_as_a_command(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CC", "gcc '")
    assert native.library() is None
    assert 'CC="gcc \'"' in caplog.text


def test_a_change_of_any_source_means_another_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    included = {SOURCE.with_name(name) for name in re.findall(r'#include "(.*)"', SOURCE.read_text())}
    assert included == set(compiler.HEADERS)
    keys = {compiler._key(VARIANTS[0])}
    for number, header in enumerate(compiler.HEADERS):
        changed = tmp_path / header.name
        changed.write_text(header.read_text() + "\n")
        others = (*compiler.HEADERS[:number], changed, *compiler.HEADERS[number + 1 :])
        monkeypatch.setattr(compiler, "HEADERS", others)
        keys.add(compiler._key(VARIANTS[0]))
    assert len(keys) == 1 + len(included)
