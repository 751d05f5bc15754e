"""Building an ONNX graph: nodes by operator, weights stored once."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from hashee.errors import UnsupportedModel
from hashee.packages import require

Array = npt.NDArray[Any]

AXES_AS_INPUT = 18
"""From this opset on, ReduceMax takes its axes as an input."""


class Graph:
    """Nodes and weights of a graph under construction; values are strings, their names.

    Branches of an `If` are graphs of their own whose weights are stored in the outermost one. int8: layers multiply
    rows by their weights in int8, see `hashee.export.products`.
    """

    def __init__(self, opset: int, outer: Graph | None = None, int8: bool = False) -> None:
        self.opset = opset
        self.onnx = require("onnx", "onnx", "exporting to ONNX")
        self.nodes: list[Any] = []
        self.outer = outer
        self.root: Graph = self if outer is None else outer.root
        self.int8: bool = int8 if outer is None else outer.int8
        self.weights: dict[str, Array] = {}
        self._names: dict[Any, str] = {}
        self._sources: list[tuple[Tensor, ...]] = []
        self._count = 0

    def node(self, operator: str, *inputs: str, name: str | None = None, **attributes: Any) -> str:
        """Append a node with one output and return the output's name."""
        return self.nodes_of(operator, *inputs, names=(name or self.fresh(operator),), **attributes)[0]

    def nodes_of(self, operator: str, *inputs: str, names: tuple[str, ...], **attributes: Any) -> tuple[str, ...]:
        """Append a node with several outputs, given by their names."""
        made = self.onnx.helper.make_node(operator, list(inputs), list(names), name=names[0], **attributes)
        self.nodes.append(made)
        return names

    def split(self, value: str, sizes: list[int], axis: int) -> tuple[str, ...]:
        """Split a value along an axis."""
        names = tuple(self.fresh("Split") for _ in sizes)
        return self.nodes_of("Split", value, self.ints(sizes), names=names, axis=axis)

    def ints(self, values: list[int] | int) -> str:
        """Return a constant of int64: a list makes a vector, a number a scalar."""
        return self.array(np.asarray(values, dtype=np.int64))

    def floats(self, values: list[float] | float) -> str:
        """Return a constant of float32."""
        return self.array(np.asarray(values, dtype=np.float32))

    def array(self, values: Array) -> str:
        """Return a small constant, stored once however often it is used."""
        root = self.root
        key = (values.dtype.str, values.shape, values.tobytes())
        if key not in root._names:
            root._names[key] = root.fresh("constant")
            root.weights[root._names[key]] = values
        return root._names[key]

    def weight(self, tensor: Tensor, role: str, *sources: Tensor) -> str:
        """Return a weight as float32 (integers stay), stored once for each role of the tensors it is made of.

        sources: the parameters that `tensor` was computed from, if it is not one itself.
        """
        root = self.root
        key = (role, *(id(source) for source in sources or (tensor,)))
        if key not in root._names:
            values = tensor.detach().cpu()
            values = values.float() if values.is_floating_point() else values
            root._names[key] = root.fresh(role)
            root.weights[root._names[key]] = np.ascontiguousarray(values.numpy())
            # The key is only unique while its tensors live.
            root._sources.append(sources or (tensor,))
        return root._names[key]

    def if_else(self, condition: str, then: tuple[Graph, str], otherwise: tuple[Graph, str]) -> str:
        """Return the result of one of two branches, each given with the name of its result."""
        helper = self.onnx.helper
        made = {}
        for role, (branch, result) in (("then_branch", then), ("else_branch", otherwise)):
            info = helper.make_tensor_value_info(result, self.onnx.TensorProto.FLOAT, None)
            made[role] = helper.make_graph(branch.nodes, self.fresh(role), [], [info])
        return self.node("If", condition, **made)

    # Operators that all parts of the graph use, under the names of numpy and torch.

    def slice(self, value: str, start: str, end: str, axis: int = 0) -> str:
        """Return value[start:end] along an axis; start and end are vectors of one number."""
        return self.node("Slice", value, start, end, self.ints([axis]))

    def gather(self, value: str, index: str) -> str:
        """Return value[index] along the first axis."""
        return self.node("Gather", value, index, axis=0)

    def reshape(self, value: str, shape: list[int]) -> str:
        """Reshape a value: 0 keeps a dimension, -1 is inferred."""
        return self.node("Reshape", value, self.ints(shape))

    def scatter(self, size: str, index: str, values: str, fill: Array) -> str:
        """Return a vector of `size` entries with `values` at `index` and `fill` elsewhere; `fill` has one entry."""
        empty = self.node("ConstantOfShape", size, value=self.onnx.numpy_helper.from_array(fill))
        return self.node("ScatterElements", empty, index, values, axis=0)

    def max(self, value: str, axis: int, keep: bool = False) -> str:
        """Return the maximum along an axis, which is removed unless it is to be kept with one entry."""
        if self.opset >= AXES_AS_INPUT:
            return self.node("ReduceMax", value, self.ints([axis]), keepdims=int(keep))
        return self.node("ReduceMax", value, axes=[axis], keepdims=int(keep))

    def sum(self, value: str, axis: int) -> str:
        """Return the sum along an axis, which is removed."""
        return self.node("ReduceSum", value, self.ints([axis]), keepdims=0)

    def arange(self, size: str) -> str:
        """Return 0, 1, ..., size - 1. size: a scalar."""
        return self.node("Range", self.ints(0), size, self.ints(1))

    def linear(self, rows: str, module: Any) -> str:
        """Apply a Linear module to (rows, width), in float32."""
        module = as_linear(module)
        bias = [] if module.bias is None else [self.weight(module.bias, "bias")]
        return self.node("Gemm", rows, self.weight(module.weight, "weight"), *bias, transB=1)

    def norm(self, rows: str, module: Any) -> str:
        """Apply a LayerNorm module to (rows, width)."""
        if type(module) is not nn.LayerNorm or module.weight is None:
            raise UnsupportedModel(f"{type(module).__name__} cannot be exported where a LayerNorm is expected")
        scale, bias = self.weight(module.weight, "scale"), self.weight(module.bias, "bias")
        return self.node("LayerNormalization", rows, scale, bias, axis=-1, epsilon=float(module.eps))

    def fresh(self, stem: str) -> str:
        """Return a name that is not in use."""
        root = self.root
        root._count += 1
        return f"{stem}_{root._count}"


def as_linear(module: Any) -> nn.Linear:
    """Return a module that is a plain Linear layer, or refuse it."""
    if type(module) is not nn.Linear:
        raise UnsupportedModel(
            f"{type(module).__name__} cannot be exported where a Linear layer is expected; merge adapters "
            "(merge_and_unload), and export the model before quantizing it"
        )
    return module
