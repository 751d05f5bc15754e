"""Texts per second of an embedder from text to vector: dense in sentence-transformers' backends, faster in hashee's.

    HASHEE_DATA=... python benchmarks/embedder_clocks.py --dense MODEL --fast FOLDER \
        --peers VENV/bin/python --output results/embedders/clocks-minilm.json

FOLDER is what `hashee speedup` wrote of MODEL. sentence-transformers' ONNX and OpenVINO backends need optimum, which
pins another version of transformers than hashee has, so they run in an environment of their own:

    python -m venv VENV
    VENV/bin/pip install torch==2.13.0 sentence-transformers datasets optimum-onnx optimum-intel nncf

Without --peers they are left out. Every row is a process with the same number of threads; rounds are interleaved, one
process runs at a time. Beside each row: how many of STS-B's dev pairs it puts in the right order (Spearman).
"""

# ruff: noqa: PLC0415  # the process of a row imports what its environment has, all others nothing

import argparse
import gzip
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

Texts = Sequence[str]
Embed = Callable[[Texts, int], Any]
"""From texts and a number of texts at once to embeddings: (texts, width)."""

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Row:
    """One way to embed texts."""

    name: str
    open: Callable[[argparse.Namespace], Embed]
    peer: bool = False
    """Whether it runs in the peers' environment, without hashee."""


# --- dense, by sentence-transformers -----------------------------------------------------------------------


def _client(source: str | Path, **options: Any) -> Embed:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(source), device="cpu", **options)
    return lambda texts, size: model.encode(list(texts), batch_size=size, show_progress_bar=False)


def _dense(options: argparse.Namespace) -> Embed:
    return _client(options.dense)


def _dense_onnx(options: argparse.Namespace) -> Embed:
    return _client(_exported(options, "onnx"), backend="onnx", model_kwargs=_onnx_threads(options))


def _dense_onnx_int8(options: argparse.Namespace) -> Embed:
    from sentence_transformers import SentenceTransformer, export_dynamic_quantized_onnx_model

    folder, kind = _exported(options, "onnx"), "avx512_vnni" if _has("avx512_vnni") else "avx2"
    file = f"onnx/model_{'quint8' if kind == 'avx2' else 'qint8'}_{kind}.onnx"
    if not (folder / file).exists():
        model = SentenceTransformer(str(folder), backend="onnx", device="cpu")
        export_dynamic_quantized_onnx_model(model, kind, str(folder))
    return _client(folder, backend="onnx", model_kwargs={"file_name": file} | _onnx_threads(options))


def _dense_openvino(options: argparse.Namespace) -> Embed:
    folder = _exported(options, "openvino")
    return _client(folder, backend="openvino", model_kwargs={"ov_config": _openvino_settings(options)})


def _dense_openvino_int8(options: argparse.Namespace) -> Embed:
    from sentence_transformers import SentenceTransformer, export_static_quantized_openvino_model

    folder = _exported(options, "openvino")
    file = "openvino/openvino_model_qint8_quantized.xml"
    if not (folder / file).exists():
        data = options.work / "calibration"
        data.mkdir(exist_ok=True)
        lines = (json.dumps({"text": text}) for text in options.calibration)
        (data / "train.jsonl").write_text("\n".join(lines), encoding="utf-8")
        model = SentenceTransformer(str(folder), backend="openvino", device="cpu")
        export_static_quantized_openvino_model(model, None, str(folder), str(data), "default", "train", "text")
    settings = {"file_name": file, "ov_config": _openvino_settings(options)}
    return _client(folder, backend="openvino", model_kwargs=settings)


def _exported(options: argparse.Namespace, backend: str) -> Path:
    """Return a copy of the dense model with its graph beside it."""
    from sentence_transformers import SentenceTransformer

    folder: Path = options.work / f"dense-{backend}"
    if not folder.exists():
        SentenceTransformer(options.dense, backend=backend, device="cpu").save_pretrained(str(folder))
    return folder


def _onnx_threads(options: argparse.Namespace) -> dict[str, Any]:
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = options.threads
    return {"provider": "CPUExecutionProvider", "session_options": settings}


def _openvino_settings(options: argparse.Namespace) -> dict[str, Any]:
    # In float32 as all others; on some processors it would run in bfloat16 unasked.
    return {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": options.threads, "INFERENCE_PRECISION_HINT": "f32"}


# --- faster, by hashee -------------------------------------------------------------------------------------


def _fast(options: argparse.Namespace) -> Embed:
    import hashee  # noqa: F401  # registers its classes

    return _client(options.fast)


def _fast_int8(options: argparse.Namespace) -> Embed:
    from sentence_transformers import SentenceTransformer

    import hashee

    model = hashee.quantize(SentenceTransformer(str(options.fast), device="cpu"))
    return lambda texts, size: model.encode(list(texts), batch_size=size, show_progress_bar=False)


def _fast_exported(backend: str, int8: bool) -> Callable[[argparse.Namespace], Embed]:
    def opened(options: argparse.Namespace) -> Embed:
        from sentence_transformers import SentenceTransformer

        import hashee
        from hashee.export import export_onnx

        folder = options.work / f"fast-{'int8' if int8 else 'float32'}"
        if not folder.exists():
            export_onnx(SentenceTransformer(str(options.fast), device="cpu"), folder, int8=int8)
        model = hashee.load(folder, backend, threads=options.threads)

        def embed(texts: Texts, size: int) -> Any:
            # As the client does it: the longest texts first, so many at once.
            order = sorted(range(len(texts)), key=lambda number: -len(texts[number]))
            found: list[Any] = [None] * len(texts)
            for first in range(0, len(order), size):
                chosen = order[first : first + size]
                for number, row in zip(chosen, model.predict_batch([texts[each] for each in chosen]), strict=True):
                    found[number] = row
            return np.stack(found)

        return embed

    return opened


ROWS = (
    Row("sentence-transformers, torch", _dense),
    Row("sentence-transformers, ONNX", _dense_onnx, peer=True),
    Row("sentence-transformers, OpenVINO", _dense_openvino, peer=True),
    Row("sentence-transformers, ONNX int8", _dense_onnx_int8, peer=True),
    Row("sentence-transformers, OpenVINO int8", _dense_openvino_int8, peer=True),
    Row("hashee, torch", _fast),
    Row("hashee, ONNX", _fast_exported("onnx", int8=False)),
    Row("hashee, OpenVINO", _fast_exported("openvino", int8=False)),
    Row("hashee, int8", _fast_int8),
    Row("hashee, ONNX int8", _fast_exported("onnx", int8=True)),
    Row("hashee, OpenVINO int8", _fast_exported("openvino", int8=True)),
)


# --- the process of a row ----------------------------------------------------------------------------------


def work(row: Row, options: argparse.Namespace) -> None:
    """Answer requests, lines of JSON, until there are no more."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever libraries print
    embed: Embed | None = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if request["do"] == "open":
                options.calibration = request["calibration"]
                embed = row.open(options)
                reply: dict[str, Any] = {}
            else:
                assert embed is not None
                reply = _run(embed, request)
        except Exception as error:
            lines = str(error).strip().splitlines() or [""]
            reply = {"error": f"{type(error).__name__}: {lines[0]}"[:300]}
        print(json.dumps(reply), file=replies, flush=True)


def _run(embed: Embed, request: dict[str, Any]) -> dict[str, Any]:
    texts, size = request["texts"], request["size"]
    start = time.perf_counter()
    found = [embed([text], 1)[0] for text in texts] if size == 1 else embed(texts, size)
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "vectors": np.asarray(found).tolist() if request.get("vectors") else None}


class Process:
    """A row's process, seen from outside."""

    def __init__(self, number: int, python: str, options: argparse.Namespace) -> None:
        self.name = ROWS[number].name
        command = [python, __file__, "--row", str(number), "--dense", options.dense, "--fast", str(options.fast)]
        command += ["--threads", str(options.threads), "--work", str(options.work)]
        environment = os.environ | dict.fromkeys(THREADS, str(options.threads))
        environment |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "TRANSFORMERS_VERBOSITY": "error"}
        self._log = options.work / f"row-{number}.log"
        with self._log.open("wb") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environment, text=True
            )

    def ask(self, **request: Any) -> dict[str, Any]:
        """Return the reply to a request; `error` says what went wrong."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        reply: dict[str, Any] = json.loads(line) if line else {"error": f"the process ended, see {self._log}"}
        return reply

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


# --- the benchmark -----------------------------------------------------------------------------------------


def texts_of(name: str) -> list[dict[str, Any]]:
    """Return the rows of a file of the datasets."""
    with gzip.open(Path(os.environ["HASHEE_DATA"]) / name, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def workloads(seed: int) -> dict[str, list[str]]:
    """Return sentences of STS-B and documents of Cranfield, drawn with a seed."""
    sentences = [row[column] for row in texts_of("STS-B/test.jsonl.gz") for column in ("sentence1", "sentence2")]
    corpus = Path(os.environ["HASHEE_DATA"]) / "Cranfield" / "corpus.jsonl.gz"
    with gzip.open(corpus, "rt", encoding="utf-8") as file:
        documents = [row["text"] for row in map(json.loads, file) if row["text"]]
    draws = random.Random(seed)
    return {"sentences": draws.sample(sentences, 512), "documents": draws.sample(documents, 64)}


def spearman(process: Process) -> float:
    """Return the rank correlation of a row's similarities with STS-B's judgements on dev."""
    from scipy.stats import spearmanr

    rows = texts_of("STS-B/dev.jsonl.gz")
    texts = [row[column] for row in rows for column in ("sentence1", "sentence2")]
    found = np.array(process.ask(do="run", texts=texts, size=32, vectors=True)["vectors"])
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    similar = (found[::2] * found[1::2]).sum(axis=1)
    return float(spearmanr(similar, [row["score"] for row in rows]).statistic)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Open all rows, then clock them in turns."""
    loads = workloads(options.seed)
    found: dict[str, dict[str, Any]] = {}
    with ExitStack() as stack:
        processes: list[Process] = []
        for number, row in enumerate(ROWS):
            if row.peer and options.peers is None:
                continue
            process = Process(number, options.peers if row.peer else sys.executable, options)
            stack.callback(process.stop)
            reply = process.ask(do="open", calibration=loads["sentences"][:300])
            if "error" in reply:
                print(f"{row.name}: {reply['error']}", flush=True)
                found[row.name] = {"skipped": reply["error"]}
                continue
            found[row.name] = {"sts_dev": spearman(process)}
            print(f"{row.name}: Spearman {found[row.name]['sts_dev']:.4f}", flush=True)
            processes.append(process)
        for load, texts in loads.items():
            for size in options.batch_sizes:
                seconds: dict[str, list[float]] = {process.name: [] for process in processes}
                for number in range(options.rounds + 1):
                    order = random.Random(f"{load}-{size}-{number}").sample(processes, len(processes))
                    for process in order:
                        taken = process.ask(do="run", texts=texts, size=size)["seconds"]
                        if number:  # the first round warms up
                            seconds[process.name].append(taken)
                for name, taken in seconds.items():
                    found[name][f"{load}, batch {size}"] = {
                        "texts_per_second": len(texts) / median(taken),
                        "seconds": taken,
                    }
                    print(f"{load}, batch {size}: {name}: {len(texts) / median(taken):,.0f} texts/s", flush=True)
    return found


def processor() -> str:
    """Return the processor's name and what its instructions can do for small numbers."""
    known = Path("/proc/cpuinfo")
    lines = known.read_text(encoding="utf-8").splitlines() if known.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    special = [name for name in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16") if _has(name)]
    return f"{(names or [platform.processor()])[0]} with {', '.join(special)}"


def _has(instruction: str) -> bool:
    known = Path("/proc/cpuinfo")
    return known.exists() and f" {instruction} " in known.read_text(encoding="utf-8").replace("\n", " ")


def main(arguments: Iterable[str] | None = None) -> None:
    """Measure, or be the process of one row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dense", required=True, help="folder or Hub id of a SentenceTransformer")
    parser.add_argument("--fast", type=Path, required=True, help="folder that hashee speedup wrote")
    parser.add_argument("--name", help="title of the result; default: the name of the dense folder")
    parser.add_argument("--peers", help="python of the environment with sentence-transformers' other backends")
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[1, 32])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--work", type=Path, help="folder for graphs and logs")
    parser.add_argument("--row", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(None if arguments is None else list(arguments))
    if options.row is not None:
        work(ROWS[options.row], options)
        return
    with tempfile.TemporaryDirectory() as folder:
        options.work = options.work or Path(folder)
        options.work.mkdir(parents=True, exist_ok=True)
        rows = measure(options)
    about = {"name": options.name or Path(options.dense).name, "threads": options.threads}
    about |= {"processor": processor(), "rounds": options.rounds}
    if options.output is not None:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(about | {"rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
