"""Opening a folder to score texts with, on any backend."""

from pathlib import Path
from typing import Any

import hashee.hf.classes
from hashee.errors import CheckpointError, HasheeError, UnsupportedOption, shortened
from hashee.export import load as load_exported
from hashee.export.runtime import BACKENDS
from hashee.hf.integrity import CONFIG, check_config, read_config
from hashee.hf.model import HashedModel
from hashee.hf.quantize import METHODS
from hashee.hf.quantize import quantize as quantize_model


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
    model = _class_in(Path(folder)).from_pretrained(folder).eval()
    return model if quantize is None else quantize_model(model)


def _class_in(folder: Path) -> Any:
    """Return the class of the converted model in a folder; only classes that hashee made come out of it."""
    path = folder / CONFIG
    if not path.is_file():
        raise CheckpointError(f"{folder} holds no {CONFIG}; name the folder of a converted model")
    document = read_config(path)
    check_config(document, path)
    names = document.get("architectures") or [""]
    found = getattr(hashee.hf.classes, names[0], None)
    if not (isinstance(found, type) and issubclass(found, HashedModel) and hasattr(found, "config_class")):
        held = shortened(names[0]) or "no model"
        raise CheckpointError(f"{folder} holds {held}, not a converted model; make one with hashee.convert")
    model_type = document.get("model_type")
    if found.config_class.model_type != model_type:
        raise CheckpointError(
            f"{path} is damaged: it names {names[0]} but the model type {shortened(model_type)}; copy it again"
        )
    return found
