"""Opening a folder to score texts with, on any backend."""

from pathlib import Path
from typing import Any

from transformers import AutoConfig

import hashee.families
from hashee.errors import CheckpointError, HasheeError, UnsupportedOption
from hashee.export import load as load_exported
from hashee.export.runtime import BACKENDS
from hashee.quantize import METHODS
from hashee.quantize import quantize as quantize_model


def load(folder: str | Path, backend: str = "torch", *, threads: int | None = None, quantize: str | None = None) -> Any:
    """Open a converted model for scoring: `load(folder).predict(texts)`.

    backend: "torch" for what `save_pretrained` wrote; "onnx" (ONNX Runtime) or "openvino" for what `export_onnx` wrote.
    threads: for the latter two; torch has `torch.set_num_threads`. quantize: "int8" for `hashee.quantize`, on torch.
    """
    if quantize is not None and quantize not in METHODS:
        raise HasheeError(f"unknown quantize {quantize!r}; choose {', '.join(METHODS)}, or None for float32")
    if quantize is not None and backend in BACKENDS:
        raise UnsupportedOption(
            f"quantize={quantize!r} is for backend 'torch', and graphs that were exported for {backend!r} are float32; "
            "load what save_pretrained wrote with backend='torch', or leave quantize out"
        )
    if backend in BACKENDS:
        return load_exported(folder, backend, threads=threads)
    if backend != "torch":
        raise HasheeError(f"unknown backend {backend!r}; choose from torch, {', '.join(BACKENDS)}")
    if not (Path(folder) / "config.json").exists():
        raise CheckpointError(f"{folder} holds no config.json; name the folder of a converted model")
    names = AutoConfig.from_pretrained(folder).architectures or []
    model_class = getattr(hashee.families, names[0], None) if names else None
    if model_class is None:
        raise CheckpointError(
            f"{folder} holds {names or 'no model'}, not a converted model; make one with hashee.convert"
        )
    model = model_class.from_pretrained(folder).eval()
    return model if quantize is None else quantize_model(model)
