"""Writing a converted model as a folder: model.onnx with the exits inside, tokenizer, config."""

from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hashee.data.output_types import OutputType
from hashee.errors import HasheeError, UnsupportedModel
from hashee.export.folder import FORMAT, GRAPH, WEIGHTS, prepared, write_description
from hashee.export.network import Client, OnnxNetwork, build_network, layout_of
from hashee.export.sentences import OUTPUT, embedding_head
from hashee.hf.model import HashedModel
from hashee.hf.sentence_models import is_sentence_model, transformer_inside
from hashee.hf.text_models import as_text_model
from hashee.packages import require
from hashee.tables.tokenization import tokenization_of
from hashee.tables.vocabulary import tokenizer_fingerprint

OPSET = 17
LARGEST_FILE = 1_900_000_000
"""Bytes of weights above which they are written to a separate file; a single ONNX file is limited to 2 GiB."""
TOLERANCE = 1e-3
"""Largest difference between graph and model that counts as rounding in float32, relative to the largest output."""
INT8_TOLERANCE = 0.5
"""Norm of the difference that counts as rounding in int8, relative to the norm of the outputs.

It tells a graph that a runtime gets wrong; what int8 costs in quality is measured on texts.
"""


def export_onnx(
    model: Any, folder: str | Path, *, tokenizer: Any = None, opset: int = OPSET, int8: bool = False
) -> Path:
    """Write a converted model to a folder that runs in ONNX Runtime or OpenVINO without torch or hashee.

    model: what `hashee.convert` or `from_pretrained` returned, or a SentenceTransformer or CrossEncoder with exits;
    then pooling and what follows it are exported too, and the default tokenizer is the model's own. The folder gets
    model.onnx, config.json, hashee_onnx.json and the tokenizer's files. Before it is moved into place,
    the graph's outputs are compared with the model's. int8: layers multiply in int8, which needs no calibration.
    """
    onnx = require("onnx", "onnx", "exporting to ONNX")
    whole, client = model, None
    if is_sentence_model(model):
        model = transformer_inside(whole)
        tokenizer = whole.tokenizer if tokenizer is None else tokenizer
        opened = as_text_model(whole)
        embeds = opened.output is OutputType.EMBEDDING
        client = Client(embedding_head(whole) if embeds else None, opened.token_types)
    if not isinstance(model, HashedModel):
        raise UnsupportedModel(
            f"{type(model).__name__} is not a converted model; export what hashee.convert or from_pretrained returned "
            "(after merge_and_unload, if it carries PEFT adapters)"
        )
    newest = min(onnx.defs.onnx_opset_version(), 22)
    if not OPSET <= opset <= newest:
        raise HasheeError(f"opset {opset} is not covered; use one from {OPSET} to {newest}")
    tokenizer = model._tokenizer if tokenizer is None else tokenizer
    if tokenizer is not None:
        model.exit_table.check(tokenizer=tokenizer)
    network = build_network(model, opset, int8, client)
    folder = Path(folder)
    with prepared(folder) as draft:
        _write_graph(network, draft)
        model.config.save_pretrained(draft)
        if tokenizer is not None:
            tokenizer.save_pretrained(draft)
        # It is inside the graph as well, but from here the cost of a text can be counted without a runtime.
        model.exit_table.save(draft)
        _compare(whole, model, network, draft / GRAPH)
        write_description(draft, _describe(model, network, tokenizer))
    return folder


def _write_graph(network: OnnxNetwork, draft: Path) -> None:
    """Write model.onnx, and its weights beside it if they are too large for one file."""
    graph, onnx = network.graph, network.graph.onnx
    helper, types = onnx.helper, onnx.TensorProto
    inputs = [helper.make_tensor_value_info(name, types.INT64, ["batch", "length"]) for name in network.inputs]
    outputs = [helper.make_tensor_value_info(name, types.FLOAT, shape) for name, shape in network.outputs.items()]
    weights = [onnx.numpy_helper.from_array(values, name) for name, values in graph.weights.items()]
    made = helper.make_model(
        helper.make_graph(graph.nodes, "hashee", inputs, outputs, weights),
        opset_imports=[helper.make_opsetid("", graph.opset)],
        ir_version=helper.find_min_ir_version_for([helper.make_opsetid("", graph.opset)]),
        producer_name="hashee",
        producer_version=version("hashee"),
    )
    large = sum(values.nbytes for values in graph.weights.values()) > LARGEST_FILE
    beside = {"save_as_external_data": True, "location": WEIGHTS, "size_threshold": 1024} if large else {}
    onnx.save_model(made, draft / GRAPH, **beside)
    onnx.checker.check_model(str(draft / GRAPH))


def _describe(model: Any, network: OnnxNetwork, tokenizer: Any) -> dict[str, Any]:
    """Return what a program needs to know before it runs the graph, as JSON values."""
    encoder, table, types = model.hashed_encoder, model.exit_table, "token_type_ids"
    return {
        "format": FORMAT,
        "inputs": list(network.inputs),
        "outputs": {name: list(shape) for name, shape in network.outputs.items()},
        "opset": network.graph.opset,
        "precision": "int8" if network.graph.int8 else "float32",
        "reads_first_row": network.reads_first_row,
        "vocabulary": len(encoder.exit_layers),
        "positions": int(encoder.adapter.max_position(encoder)),
        "padding_id": int(encoder.embeddings.padding_idx) if layout_of(model).positions_after_padding else None,
        "token_types": encoder.embeddings.token_type_embeddings.num_embeddings if types in network.inputs else 0,
        "num_layers": table.num_layers,
        "table_fingerprint": table.fingerprint,
        "tokenizer_fingerprint": tokenizer_fingerprint(tokenizer) if tokenizer else table.tokenizer_fingerprint,
        "tokenization": tokenization_of(tokenizer) if tokenizer else model.config.hashee.get("tokenization"),
        "libraries": {name: version(name) for name in ("hashee", "torch", "transformers", "onnx")},
    }


def _compare(whole: Any, model: Any, network: OnnxNetwork, path: Path) -> None:
    """Raise if the outputs of graph and model differ on a small batch of several lengths.

    whole: the model with what a client puts around it.
    """
    if next(model.parameters()).dtype != torch.float32:
        return  # the graph is in float32 or int8, so the model's own rounding would be measured
    ids, mask = _probe(model)
    arrays = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    runtime = require("onnxruntime", "onnx", "checking an exported graph")
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    outputs = session.run(list(network.outputs), {name: arrays[name] for name in network.inputs})
    given = {name: torch.from_numpy(arrays[name]).to(model.device) for name in ("input_ids", "attention_mask")}
    training = whole.training
    try:
        with torch.no_grad():
            whole.eval()
            expected = whole(given) if OUTPUT in network.outputs else model(**given)
    finally:
        whole.train(training)
    for name, output in zip(network.outputs, outputs, strict=True):
        reference = expected[name].float().cpu().numpy()
        difference = float(np.abs(output - reference).max(initial=0.0))
        if network.graph.int8:
            right = np.linalg.norm(output - reference) <= INT8_TOLERANCE * np.linalg.norm(reference)
        else:
            right = difference <= TOLERANCE * max(1.0, float(np.abs(reference).max(initial=0.0)))
        if not right:
            raise UnsupportedModel(
                f"the exported graph's {name} differs from the model's by {difference:.1e}; {type(model).__name__} "
                "holds parts that the exporter does not know"
            )


def _probe(model: Any) -> tuple[Any, Any]:
    """Return ids over the whole vocabulary and a right-padded mask: (batch, length) each."""
    encoder = model.hashed_encoder
    length = min(16, encoder.adapter.max_length(model.config))
    generator = np.random.default_rng(0)
    lengths = np.maximum(np.array([length, length // 2, 1, length - 1]), 1)
    mask = (np.arange(length)[None] < lengths[:, None]).astype(np.int64)
    ids = generator.integers(0, len(encoder.exit_layers), mask.shape)
    return np.where(mask, ids, model.config.pad_token_id or 0), mask
