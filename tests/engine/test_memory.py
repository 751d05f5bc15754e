"""Loaded weights are aligned to cache lines, are not in memory twice, and keep their values."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForMaskedLM

from architectures import converted, make_exits, make_model
from hashee.engine.memory import CACHE_LINE, align_
from saved_folders import drop_checksums


def test_loaded_weights_start_at_cache_lines(tmp_path: Path) -> None:
    model = converted(make_model("bert", AutoModelForMaskedLM), make_exits("random exits"))
    model.save_pretrained(tmp_path)
    drop_checksums(tmp_path)
    path = tmp_path / "model.safetensors"
    # A header of another length shifts the weights; in one of the two files they are not aligned.
    for note in ("", "a" * 8):
        save_file(load_file(path), path, metadata={"format": "pt", "note": note})
        loaded = type(model).from_pretrained(tmp_path)
        assert all(parameter.data_ptr() % CACHE_LINE == 0 for parameter in loaded.parameters())
        for name, parameter in model.named_parameters():
            assert torch.equal(loaded.get_parameter(name), parameter)
        # The output embeddings stay tied to the input embeddings.
        assert loaded.get_output_embeddings().weight is loaded.get_input_embeddings().weight


@pytest.mark.skipif(platform.system() != "Linux", reason="only Linux tells what lies in memory")
def test_weights_are_not_in_memory_twice(tmp_path: Path) -> None:
    model = converted(make_model("bert", intermediate_size=100_000), make_exits("random exits"))
    model.save_pretrained(tmp_path)
    size = (tmp_path / "model.safetensors").stat().st_size
    script = """
import mmap, sys, hashee
from transformers import AutoModel
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * mmap.PAGESIZE
AutoModel.from_pretrained(sys.argv[1] + "/small")
before = resident()
model = AutoModel.from_pretrained(sys.argv[1])
print(resident() - before)
"""
    small = converted(make_model("bert"), make_exits("random exits"))
    small.save_pretrained(tmp_path / "small")
    run = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True, check=True)
    assert int(run.stdout.split()[-1]) < 1.25 * size


def test_aligned_weights_are_not_moved() -> None:
    model = make_model("bert")
    align_(model)
    addresses = [parameter.data_ptr() for parameter in model.parameters()]
    align_(model)
    assert [parameter.data_ptr() for parameter in model.parameters()] == addresses


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries are left as they are")
def test_freed_memory_is_kept_in_training_and_given_back_after_it() -> None:
    script = """
import ctypes, mmap, resource
from hashee.engine.memory import freed_memory_kept
library, size = ctypes.CDLL(None), 64 << 20
library.malloc.restype = ctypes.c_void_p
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1])
def step():
    before = faults()
    block = ctypes.c_void_p(library.malloc(ctypes.c_size_t(size)))
    ctypes.memset(block, 1, size)
    library.free(block)
    return faults() - before
step()
usual, base = step(), resident()
with freed_memory_kept():
    step()
    inside, held = step(), resident() - base
print(usual, inside, held * mmap.PAGESIZE / size, (resident() - base) * mmap.PAGESIZE / size)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    usual, inside, held, after = map(float, run.stdout.split())
    assert usual > 10 * inside
    assert held > 0.9
    assert after < 0.1
