"""hashee's packed engine: with exits, at full depth, in int8, in training, and exported to other runtimes."""

import json
from pathlib import Path
from typing import Any

from hashee.bench.baselines import Outputs, RunBatch
from hashee.bench.batches import Padded
from hashee.bench.protocol import ClockJob

# torch is imported where it is needed: processes that run an exported graph do without it.


def converted_model(job: ClockJob, exits: bool = True) -> Any:
    """Return the model under test on the packed engine, with the workload's exit table or none."""
    from hashee.bench.baselines.transformers_baselines import dense_model  # noqa: PLC0415
    from hashee.hf.convert import convert  # noqa: PLC0415
    from hashee.tables.table import ExitTable  # noqa: PLC0415

    dense = dense_model(job)
    table = ExitTable.load(Path(job.table)) if exits else ExitTable.never(dense.config.vocab_size, job.depth)
    return convert(dense, table)


def load(job: ClockJob, exits: bool = True, int8: bool = False) -> RunBatch:
    """Return the converted model as a function of padded batches."""
    from hashee.bench.baselines.transformers_baselines import runner  # noqa: PLC0415
    from hashee.hf.quantize import quantize  # noqa: PLC0415

    model = converted_model(job, exits)
    return runner(quantize(model) if int8 else model)


def load_training(job: ClockJob) -> RunBatch:
    """Return one forward and backward pass of the converted model as a function of padded batches."""
    from hashee.bench.baselines.transformers_baselines import training_runner  # noqa: PLC0415

    return training_runner(converted_model(job))


def exported_folder(job: ClockJob, int8: bool = False) -> Path:
    """Return where the exported model of this depth lies."""
    return job.artifact("hashee-onnx-int8" if int8 else "hashee-onnx")


def export(job: ClockJob, int8: bool = False) -> None:
    """Export the converted model, exits inside, unless that was done before."""
    from hashee.export import export_onnx  # noqa: PLC0415

    folder = exported_folder(job, int8)
    if not folder.exists():
        export_onnx(converted_model(job), folder, int8=int8)


def export_int8(job: ClockJob) -> None:
    """Export the converted model with layers in int8."""
    export(job, int8=True)


def load_onnx(job: ClockJob, int8: bool = False) -> RunBatch:
    """Return the exported model in ONNX Runtime as a function of padded batches."""
    import onnxruntime  # noqa: PLC0415

    graph, names = _graph_and_inputs(exported_folder(job, int8))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = job.threads
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(graph), sess_options=options, providers=["CPUExecutionProvider"])

    def run(batch: Padded) -> Outputs:
        arrays = batch.named()
        logits: Outputs = session.run(["logits"], {name: arrays[name] for name in names})[0]
        return logits

    return run


def load_openvino(job: ClockJob, int8: bool = False) -> RunBatch:
    """Return the exported model in OpenVINO as a function of padded batches."""
    import openvino  # noqa: PLC0415

    graph, names = _graph_and_inputs(exported_folder(job, int8))
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": job.threads,
        "NUM_STREAMS": 1,
        "INFERENCE_PRECISION_HINT": "f32",
    }
    request = openvino.Core().compile_model(str(graph), "CPU", settings).create_infer_request()
    met: set[bytes] = set()

    def run(batch: Padded) -> Outputs:
        arrays = batch.named()
        if (batch_id := arrays["input_ids"].tobytes()) not in met:
            # Outputs are wrong where buffers had to grow for them; see `OpenVinoModel`. This is in the warm-up.
            request.infer({name: arrays[name] for name in names}, share_inputs=True)
            met.add(batch_id)
        # The result lives in the request's own memory, so it is copied before the next batch overwrites it.
        found = request.infer({name: arrays[name] for name in names}, share_inputs=True)
        logits: Outputs = found["logits"].copy()
        return logits

    return run


def _graph_and_inputs(folder: Path) -> tuple[Path, list[str]]:
    """Return the graph of an exported folder and the inputs that it takes."""
    description = json.loads((folder / "hashee_onnx.json").read_text(encoding="utf-8"))
    return folder / "model.onnx", description["inputs"]
