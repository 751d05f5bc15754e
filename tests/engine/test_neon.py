"""The kernels for aarch64, cross-compiled and run in an emulator, give what those for this processor give."""

import platform
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from hashee.engine.native import compiler, variants

TOOLS = ("gcc", "aarch64-linux-gnu-gcc", "qemu-aarch64")
NAMED = {variant.name: variant for variant in variants.VARIANTS}

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or not all(map(shutil.which, TOOLS)) or NAMED["avx2"].missing() is not None,
    reason=f"needs {', '.join(TOOLS)} on an x86 processor with AVX2 (Debian: gcc-aarch64-linux-gnu, qemu-user)",
)


def outputs(folder: Path, command: str, flags: tuple[str, ...], *emulator: str) -> dict[str, np.ndarray]:
    """Compile the program that runs every kernel, run it, and return what each gave."""
    program = folder / command
    source = Path(__file__).with_name("kernels_check.c")
    include = f"-I{compiler.SOURCE.parent}"
    options = ["-O2", "-fno-math-errno", "-fopenmp", "-static", include, *flags]
    subprocess.run([command, *options, str(source), "-o", str(program)], check=True)
    printed = subprocess.run([*emulator, str(program)], capture_output=True, text=True, check=True).stdout
    found: dict[str, list[float]] = {}
    for line in printed.splitlines():
        name, _, value = line.partition(" ")
        found.setdefault(name, []).append(float(value))
    return {name: np.array(values) for name, values in found.items()}


def test_neon_kernels_equal_those_of_avx2(tmp_path: Path) -> None:
    ours = outputs(tmp_path, "aarch64-linux-gnu-gcc", NAMED["neon"].flags, "qemu-aarch64", "-cpu", "max")
    theirs = outputs(tmp_path, "gcc", NAMED["avx2"].flags)
    assert set(ours) == set(theirs) == {"linear", "int8_linear", "gelu", "layers", "int8_layers"}
    for name, expected in theirs.items():
        assert np.isfinite(expected).all() and expected.std() > 0.1
        difference = np.linalg.norm(ours[name] - expected) / np.linalg.norm(expected)
        # In int8 a number on the edge between two steps may fall to either side.
        assert difference <= (5e-3 if name.startswith("int8") else 1e-5), name


def test_int8_sums_are_the_same_on_avx512(tmp_path: Path) -> None:
    if NAMED["avx512"].missing() is not None:
        pytest.skip("this processor has no AVX-512")
    ours, theirs = (outputs(tmp_path, "gcc", NAMED[name].flags) for name in ("avx512", "avx2"))
    for name, expected in theirs.items():
        difference = np.linalg.norm(ours[name] - expected) / np.linalg.norm(expected)
        assert difference <= (5e-3 if name.startswith("int8") else 1e-5), name
