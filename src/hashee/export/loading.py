"""Opening a folder to score texts with, on any backend."""

from pathlib import Path
from typing import Any

from hashee.errors import HasheeError, UnsupportedOption
from hashee.export import load as load_exported
from hashee.export.runtime import BACKENDS
from hashee.hf.opening import open_converted
from hashee.hf.quantize import METHODS, quantize_


def load(folder: str | Path, backend: str = "torch", *, threads: int | None = None, quantize: str | None = None) -> Any:
    """Open a converted model for scoring: `load(folder).predict(texts)`.

    backend: "torch" for what `save_pretrained` wrote; "onnx" (ONNX Runtime) or "openvino" for what `export_onnx` wrote.
    threads: for the latter two; torch has `torch.set_num_threads`. quantize: "int8" for `hashee.quantize`, on torch.
    """
    if quantize is not None and quantize not in METHODS:
        raise HasheeError(f"unknown quantize {quantize!r}; choose {', '.join(METHODS)}, or None for float32")
    if quantize is not None and backend in BACKENDS:
        raise UnsupportedOption(
            f"quantize={quantize!r} is for backend 'torch'; for {backend!r} the model is exported in int8 "
            "(hashee export onnx --int8), and quantize is left out"
        )
    if backend in BACKENDS:
        return load_exported(folder, backend, threads=threads)
    if backend != "torch":
        raise HasheeError(f"unknown backend {backend!r}; choose from torch, {', '.join(BACKENDS)}")
    model = open_converted(folder)
    return model if quantize is None else quantize_(model)
