"""Running an exported folder: the same call for ONNX Runtime and OpenVINO."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from hashee.data.batching import Batching
from hashee.data.texts import Text
from hashee.errors import CheckpointError, HasheeError, InputError, first_line
from hashee.export.folder import GRAPH, check_exported_tokenizer, read_description
from hashee.export.packing import EXIT_TABLE
from hashee.hf.predict import Scorer, main_output, predict, predict_batch
from hashee.hf.pretrained import read_tokenizer
from hashee.packages import require

Integers = npt.NDArray[np.int64]


class ExportedModel(ABC):
    """A folder that `export_onnx` wrote, ready to run; each subclass is a runtime.

    threads: number of threads for one batch; None: the runtime decides.
    """

    backend: ClassVar[str]

    def __init__(self, folder: str | Path, threads: int | None = None) -> None:
        if threads is not None and threads < 1:
            raise InputError(f"threads is {threads}; use 1 or more, or None to let the runtime decide")
        self.folder = Path(folder)
        # The working folder of the process may change, and other processes have another one.
        self._opening = (self.folder.absolute(), threads)
        self.description = read_description(self.folder)
        self.inputs: tuple[str, ...] = tuple(self.description["inputs"])
        self.outputs: tuple[str, ...] = tuple(self.description["outputs"])
        self._tokenizer: Any = None
        try:
            self._start(self.folder / GRAPH, threads)
        except HasheeError:
            raise
        except Exception as error:
            raise CheckpointError(
                f"{self.folder / GRAPH} cannot be run ({first_line(error)}); copy it again or export the model again"
            ) from error

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as the folder, which is opened again where the pickle is read."""
        return _reopen, (type(self), *self._opening, self.description, self._tokenizer)

    @property
    def tokenizer(self) -> Any:
        """The tokenizer that was exported with the model."""
        if self._tokenizer is None:
            folder = self._opening[0]
            if not (folder / "tokenizer_config.json").exists():
                raise HasheeError(f"{self.folder} holds no tokenizer; export with export_onnx(..., tokenizer=...)")
            self.use_tokenizer(read_tokenizer(folder))
        return self._tokenizer

    def use_tokenizer(self, tokenizer: Any) -> None:
        """Remember a tokenizer after checking that it is the one whose ids the model reads."""
        check_exported_tokenizer(tokenizer, self.description)
        self._tokenizer = tokenizer

    def __call__(
        self, input_ids: npt.ArrayLike, attention_mask: npt.ArrayLike, token_type_ids: npt.ArrayLike | None = None
    ) -> dict[str, npt.NDArray[np.float32]]:
        """Run a batch of (batch, length) integers and return every output by its name."""
        ids = _integers("input_ids", input_ids)
        arrays = {"input_ids": ids, "attention_mask": _integers("attention_mask", attention_mask)}
        types = np.zeros_like(ids) if token_type_ids is None else _integers("token_type_ids", token_type_ids)
        arrays["token_type_ids"] = types
        self._check(arrays)
        return self._run({name: arrays[name] for name in self.inputs})

    def predict(
        self,
        texts: Iterable[Text] | str | Path,
        *,
        tokenizer: Any = None,
        batching: Batching | None = None,
        progress: bool = True,
    ) -> Iterator[npt.NDArray[Any]]:
        """Yield the output of each text in order, as `predict` of the model in torch does."""
        if tokenizer is not None and tokenizer is not self._tokenizer:
            check_exported_tokenizer(tokenizer, self.description)
        return predict(self.scorer(), texts, tokenizer or self.tokenizer, batching or Batching(), progress)

    def predict_batch(self, texts: Sequence[Text], *, batching: Batching | None = None) -> list[npt.NDArray[Any]]:
        """Return what `predict` yields for a list of texts or pairs, without a thread or progress bar of its own."""
        return predict_batch(self.scorer(), texts, self.tokenizer, batching or Batching())

    def scorer(self) -> Scorer:
        """Return what runs batches of this model, and what must be known to make them."""
        padding_id = self.description["padding_id"]
        return Scorer(
            run=lambda arrays: np.asarray(main_output(self(**arrays))),
            max_length=self.description["positions"] - (0 if padding_id is None else padding_id + 1),
            token_types="token_type_ids" in self.inputs,
            exit_layers=None,
        )

    def _check(self, arrays: dict[str, Integers]) -> None:
        """Raise for inputs on which the graph, which cannot raise, would return wrong outputs."""
        ids, mask = arrays["input_ids"], arrays["attention_mask"]
        for name, array in arrays.items():
            if array.shape != ids.shape:
                raise InputError(f"{name} is {array.shape} but input_ids is {ids.shape}")
        if ids.size == 0:
            raise InputError(f"input_ids is {ids.shape}; pass at least one position")
        if not np.isin(mask, (0, 1)).all():
            raise InputError("attention_mask with values other than 0 and 1: pass a mask of zeros and ones")
        real = mask == 1
        self._check_range("token id", ids[real], self.description["vocabulary"], "use the tokenizer of the model")
        self._check_range(
            "position", self._positions(ids)[real], self.description["positions"], "tokenize with truncation=True"
        )
        if self.description["token_types"]:
            types = arrays["token_type_ids"][real]
            self._check_range("token type", types, self.description["token_types"], "pass smaller ones")
        if self.description["reads_first_row"] and not real[:, 0].all():
            row = int(np.flatnonzero(~real[:, 0])[0])
            raise InputError(
                f"the head reads the first position, which is padding in row {row}; pad on the right "
                "(tokenizer.padding_side = 'right')"
            )

    def _check_range(self, what: str, numbers: Integers, size: int, remedy: str) -> None:
        outside = numbers[(numbers < 0) | (numbers >= size)]
        if outside.size:
            raise InputError(f"{what} {outside[0]} is outside the model's {size}; {remedy}")

    def _positions(self, ids: Integers) -> Integers:
        """Return the positions as the graph numbers them: (batch, length)."""
        padding_id = self.description["padding_id"]
        if padding_id is None:
            return np.broadcast_to(np.arange(ids.shape[1]), ids.shape)
        real = ids != padding_id
        return np.asarray(real.cumsum(1) * real + padding_id)

    @abstractmethod
    def _start(self, path: Path, threads: int | None) -> None:
        """Open the graph in the runtime."""

    @abstractmethod
    def _run(self, arrays: dict[str, Integers]) -> dict[str, npt.NDArray[np.float32]]:
        """Return the outputs for arrays that `_check` has accepted."""


class OnnxModel(ExportedModel):
    """An exported folder in ONNX Runtime."""

    backend = "onnx"

    def _start(self, path: Path, threads: int | None) -> None:
        runtime = require("onnxruntime", "onnx", "running an exported model")
        options = runtime.SessionOptions()
        if threads is not None:
            options.intra_op_num_threads = threads
        self.session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def _run(self, arrays: dict[str, Integers]) -> dict[str, npt.NDArray[np.float32]]:
        outputs = self.session.run(list(self.outputs), arrays)
        return dict(zip(self.outputs, outputs, strict=True))


class OpenVinoModel(ExportedModel):
    """An exported folder in OpenVINO, on the CPU and in float32."""

    backend = "openvino"

    def _start(self, path: Path, threads: int | None) -> None:
        settings: dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
        if threads is not None:
            settings["INFERENCE_NUM_THREADS"] = threads
        core = require("openvino", "openvino", "running an exported model").Core()
        graph = core.read_model(path)
        found = [node for node in graph.get_ops() if node.get_friendly_name().startswith(EXIT_TABLE)]
        if not found:
            raise CheckpointError(f"{path} holds no exit table; export the model again")
        self._exit_layers: Integers = found[0].data.copy()
        self.compiled = core.compile_model(graph, "CPU", settings)
        self._requests = threading.local()

    def _run(self, arrays: dict[str, Integers]) -> dict[str, npt.NDArray[np.float32]]:
        # A request holds one batch at a time, so every thread has its own.
        request = getattr(self._requests, "request", None)
        if request is None:
            request = self._requests.request = self.compiled.create_infer_request()
            self._requests.largest = np.zeros(1, dtype=np.int64)
        sizes = self._sizes(arrays)
        if (sizes > self._requests.largest).any():
            # OpenVINO (2026.4) returns wrong outputs whenever it had to enlarge its buffers, and right ones afterwards.
            request.infer(arrays)
            self._requests.largest = np.maximum(sizes, self._requests.largest)
        outputs = request.infer(arrays)
        return {name: np.array(outputs[name]) for name in self.outputs}

    def _sizes(self, arrays: dict[str, Integers]) -> Integers:
        """Return the numbers that determine all sizes in the graph.

        Rows, columns, and for each layer its active tokens in total and in the sequence with most of them.
        """
        ids, real = arrays["input_ids"], arrays["attention_mask"] == 1
        exits = np.where(real, self._exit_layers[np.where(real, ids, 0)], -1)
        active = [(exits >= layer).sum(1) for layer in range(self._exit_layers.max() + 1)]
        return np.array([*ids.shape, *(size for tokens in active for size in (tokens.sum(), tokens.max()))])


BACKENDS: dict[str, type[ExportedModel]] = {runtime.backend: runtime for runtime in (OnnxModel, OpenVinoModel)}


def load(folder: str | Path, backend: str = "onnx", *, threads: int | None = None) -> ExportedModel:
    """Open a folder that `export_onnx` wrote with "onnx" (ONNX Runtime) or "openvino"."""
    if backend not in BACKENDS:
        raise HasheeError(f"unknown backend {backend!r}; choose from {', '.join(BACKENDS)}")
    return BACKENDS[backend](folder, threads)


def _reopen(
    model_class: type[ExportedModel], folder: Path, threads: int | None, description: dict[str, Any], tokenizer: Any
) -> ExportedModel:
    """Open the folder of a pickled model again."""
    model = model_class(folder, threads)
    if model.description != description:
        raise CheckpointError(f"{folder} holds another model than the one that was pickled; open it with hashee.load")
    model._tokenizer = tokenizer
    return model


def _integers(name: str, values: npt.ArrayLike) -> Integers:
    array = np.asarray(values)
    if array.ndim != 2 or array.dtype.kind not in "iub":
        raise InputError(f"{name} must be integers of (batch, length), not {array.dtype} of {array.shape}")
    return array.astype(np.int64)
