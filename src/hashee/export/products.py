"""Rows times a constant matrix as ONNX nodes, in float32 or int8.

In int8 every output channel of a matrix has a step of its own, and so has every row that comes, so the answer of a text
does not depend on the texts that it shares a batch with. No calibration is needed.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hashee.export.graph import Graph, as_linear

WEIGHT_LEVELS = 127
ROW_LEVELS = 127
"""Of the unsigned integers that rows become, 7 bits: without VNNI instructions pairs of products are added in 16 bits,
where 8 would overflow."""
INT8_GAIN = 3
"""Times as fast as float32, in which attention is computed in any case; measured on a processor with VNNI."""
SMALLEST = 1e-12
"""Of a row's largest number; keeps rows of zeros from being divided by zero."""


@dataclass(frozen=True)
class Matrix:
    """The constant side of a product."""

    weight: Tensor
    """(out, in)"""
    role: str
    """Of the weight, which is stored once for each role of its sources."""
    sources: tuple[Tensor, ...]
    """Parameters that the weight was computed from."""
    bias: str | None = None
    """Name of an (out,) value."""
    least: float | None = None
    """A number that the rows never fall below, such as after an activation; None: they have no bound."""


def matrix_of(graph: Graph, module: Any, least: float | None = None) -> Matrix:
    """Return weight and bias of a Linear module. least: what the rows that it is given never fall below."""
    module = as_linear(module)
    bias = None if module.bias is None else graph.weight(module.bias, "bias")
    return Matrix(module.weight, "weight", (module.weight,), bias, least)


def multiply(graph: Graph, rows: str, matrix: Matrix) -> str:
    """Return (rows, in) x matrix + bias in the precision of the graph: (rows, out)."""
    if graph.int8:
        return _int8_product(graph, rows, matrix)
    bias = [] if matrix.bias is None else [matrix.bias]
    return graph.node("Gemm", rows, graph.weight(matrix.weight, matrix.role, *matrix.sources), *bias, transB=1)


def _int8_product(graph: Graph, rows: str, matrix: Matrix) -> str:
    """Multiply what integers stand for, of which ONNX Runtime and OpenVINO make a product of integers."""
    g = graph
    zero, smallest = _zero_of(matrix.least)
    largest = g.node("Max", g.max(g.node("Abs", rows), axis=1, keep=True), g.floats(smallest))
    # Every row is divided by its largest number, which comes in again behind the product: runtimes take one step for
    # all rows.
    step, zero_point = g.floats(1 / (ROW_LEVELS - zero)), g.array(np.asarray(zero, dtype=np.uint8))
    integers = g.node("QuantizeLinear", g.node("Div", rows, largest), step, zero_point)
    scaled = g.node("DequantizeLinear", integers, step, zero_point)
    product = g.node("Mul", g.node("MatMul", scaled, _int8_weight(g, matrix)), largest)
    return product if matrix.bias is None else g.node("Add", product, matrix.bias)


def _zero_of(least: float | None) -> tuple[int, float]:
    """Return the integer that stands for 0, and the smallest number that may count as the largest of a row.

    Rows that are never far below zero spend few of their integers there.
    """
    if least is None:
        return (ROW_LEVELS + 1) // 2, SMALLEST
    zero = 0 if least == 0 else ROW_LEVELS // 8
    return zero, max(SMALLEST, -least * (ROW_LEVELS - zero) / max(zero, 1))


def _int8_weight(graph: Graph, matrix: Matrix) -> str:
    """Return a weight that is stored in int8: (in, out)."""
    weight = matrix.weight.detach().float()
    steps = weight.abs().amax(dim=1).clamp(min=SMALLEST) / WEIGHT_LEVELS
    integers = (weight / steps[:, None]).round().to(torch.int8).t()
    stored = graph.weight(integers, f"{matrix.role}_int8", *matrix.sources)
    by_channel = graph.weight(steps, f"{matrix.role}_steps", *matrix.sources)
    return graph.node("DequantizeLinear", stored, by_channel, axis=1)
