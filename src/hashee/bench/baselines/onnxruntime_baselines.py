"""onnxruntime on the dense model: float32, and int8 by its own dynamic quantization. Only exporting needs torch."""

from pathlib import Path
from typing import Any

from hashee.bench.baselines import Outputs, RunBatch
from hashee.bench.batches import Padded
from hashee.bench.protocol import ClockJob

INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def graph_path(job: ClockJob, int8: bool = False) -> Path:
    """Return where the exported graph of this depth lies."""
    return job.artifact("onnx-int8" if int8 else "onnx").with_suffix(".onnx")


def load(job: ClockJob, int8: bool = False) -> RunBatch:
    """Return an inference session as a function of padded batches."""
    import onnxruntime  # noqa: PLC0415  # absent where this file is imported for its export alone

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = job.threads
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        str(graph_path(job, int8)), sess_options=options, providers=["CPUExecutionProvider"]
    )

    def run(batch: Padded) -> Outputs:
        logits: Outputs = session.run(["logits"], batch.named())[0]
        return logits

    return run


def export(job: ClockJob) -> None:
    """Export the dense model of this depth, with dynamic batch and length, unless that was done before."""
    if graph_path(job).exists():
        return
    import torch  # noqa: PLC0415  # only the exporting process has it

    from hashee.bench.baselines.transformers_baselines import dense_model  # noqa: PLC0415

    model = dense_model(job)

    class Logits(torch.nn.Module):
        """The model as a function of tensors alone."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
            return self.model(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids).logits

    # A process that is stopped half-way must not leave what looks like a graph.
    unfinished = graph_path(job).with_suffix(".part.onnx")
    example = torch.ones(3, 7, dtype=torch.long)
    mask = example.clone()
    mask[1:, 5:] = 0  # without padding an exporter may conclude that no mask is needed
    shape = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    torch.onnx.export(
        Logits().eval(),
        (example, mask, torch.zeros_like(example)),
        str(unfinished),
        input_names=list(INPUTS),
        output_names=["logits"],
        dynamic_shapes=dict.fromkeys(INPUTS, shape),
        dynamo=True,
        external_data=False,
    )
    unfinished.replace(graph_path(job))


def export_int8(job: ClockJob) -> None:
    """Quantize the exported graph: int8 weights, activations quantized as they come."""
    if graph_path(job, int8=True).exists():
        return
    export(job)
    import onnx  # noqa: PLC0415
    from onnxruntime.quantization import QuantType, quantize_dynamic  # noqa: PLC0415

    graph = onnx.load(str(graph_path(job)))
    # The quantizer transposes weights but not the shapes noted for them, and then stumbles over the difference.
    del graph.graph.value_info[:]
    quantize_dynamic(graph, str(graph_path(job, int8=True)), weight_type=QuantType.QInt8)
