"""OpenVINO on the dense model: float32, and int8 by NNCF with some of the texts for calibration."""

from pathlib import Path

from hashee.bench.baselines import Outputs, RunBatch
from hashee.bench.baselines.onnxruntime_baselines import export, graph_path
from hashee.bench.batches import SORTED, Padded, TokenizedTexts, cut, pad
from hashee.bench.protocol import ClockJob

CALIBRATION_TEXTS = 16


def int8_path(job: ClockJob) -> Path:
    """Return where the quantized model of this depth lies."""
    return job.artifact("openvino-int8").with_suffix(".xml")


def load(job: ClockJob, int8: bool = False) -> RunBatch:
    """Return a compiled model as a function of padded batches."""
    import openvino  # noqa: PLC0415  # absent where this file is imported for its export alone

    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": job.threads,
        "NUM_STREAMS": 1,
        # Some processors would silently run in bfloat16 otherwise.
        "INFERENCE_PRECISION_HINT": "f32",
    }
    path = int8_path(job) if int8 else graph_path(job)
    request = openvino.Core().compile_model(str(path), "CPU", settings).create_infer_request()

    def run(batch: Padded) -> Outputs:
        # The result lives in the request's own memory, so it is copied before the next batch overwrites it.
        logits: Outputs = request.infer(batch.named(), share_inputs=True)[0].copy()
        return logits

    return run


def export_int8(job: ClockJob) -> None:
    """Quantize weights and activations of the exported graph."""
    if int8_path(job).exists():
        return
    export(job)
    import nncf  # noqa: PLC0415
    import openvino  # noqa: PLC0415

    tokens = TokenizedTexts.load(Path(job.texts))
    step = max(1, len(tokens) // CALIBRATION_TEXTS)
    sample = tokens.take(range(0, len(tokens), step)[:CALIBRATION_TEXTS])
    batches = [pad(sample, indices).named() for indices in cut(sample, 1, SORTED)]
    quantized = nncf.quantize(
        openvino.Core().read_model(str(graph_path(job))),
        nncf.Dataset(batches),
        model_type=nncf.ModelType.TRANSFORMER,
        subset_size=len(batches),
    )
    openvino.save_model(quantized, str(int8_path(job)), compress_to_fp16=False)
