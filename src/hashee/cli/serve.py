"""`hashee serve`: models behind HTTP."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from hashee.packages import require


class Backend(StrEnum):
    """What runs the models."""

    torch = "torch"
    int8 = "int8"
    onnx = "onnx"
    openvino = "openvino"


class Pooling(StrEnum):
    """How the states of a text become its embedding."""

    mean = "mean"
    cls = "cls"


def serve(
    models: Annotated[
        list[Path] | None, typer.Argument(metavar="DIR", help="Folders of converted or exported models.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 for any free one.", min=0, max=65535)] = 8080,
    token: Annotated[
        str | None, typer.Option(envvar="HASHEE_TOKEN", help="What clients must send; better in the environment.")
    ] = None,
    allow_public: Annotated[bool, typer.Option("--allow-public", help="Serve other machines without a token.")] = False,
    backend: Annotated[
        Backend, typer.Option(help="torch or int8 for converted folders, onnx or openvino for exported ones.")
    ] = Backend.torch,
    threads: Annotated[
        int | None, typer.Option(help="Threads of each model; default: all cores, shared.", min=1)
    ] = None,
    pooling: Annotated[
        Pooling | None, typer.Option(help="Of embedders; default: as their folder says, else mean.")
    ] = None,
    max_queue_macs: Annotated[
        int | None, typer.Option(help="Work that may wait for a model; default: what it runs in a second.", min=1)
    ] = None,
    max_latency_ms: Annotated[float, typer.Option(help="Time to an answer without a queue; sets the batches.")] = 200.0,
    deadline_ms: Annotated[float, typer.Option(help="Time after which a request fails.")] = 30_000.0,
    max_batch: Annotated[int, typer.Option(help="Texts of a request.", min=1)] = 256,
    max_body: Annotated[int, typer.Option(help="Bytes of a request.", min=1)] = 2_000_000,
    dense: Annotated[Path | None, typer.Option(help="Folder of a dense model to compare with.")] = None,
    tradeoff: Annotated[Path | None, typer.Option(help="Folder of hashee tradeoff: serve its models as well.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Measure what this machine can take, and end.")] = False,
    lengths: Annotated[str, typer.Option(help="For --check: tokens of texts and their shares.")] = "16:4,64:2,256:1",
) -> None:
    """Serve models over HTTP to clients of OpenAI, Hugging Face and text-embeddings-inference."""
    for package in ("fastapi", "uvicorn", "prometheus_client", "orjson"):
        require(package, "serve", "serving")
    from hashee.serving.check import check_models, read_mix
    from hashee.serving.models import settings_of
    from hashee.serving.run import serve as serve_models
    from hashee.serving.settings import ModelSettings, ServeSettings

    settings = ServeSettings(
        host=host,
        port=port,
        token=token,
        allow_public=allow_public,
        max_queue_macs=max_queue_macs,
        max_latency_ms=max_latency_ms,
        deadline_ms=deadline_ms,
        max_batch=max_batch,
        max_body=max_body,
    )
    pattern = ModelSettings(Path(), backend, threads or 1, pooling)
    served = settings_of(models or [], pattern, threads, dense, tradeoff)
    if check:
        print(check_models(served, settings, read_mix(lengths)))
    else:
        serve_models(served, settings, lambda line: print(line, file=sys.stderr, flush=True))
