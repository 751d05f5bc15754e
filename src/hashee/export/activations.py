"""The activation functions of the supported families as ONNX nodes."""

import math
from collections.abc import Callable
from typing import Any

from hashee.errors import UnsupportedModel
from hashee.export.graph import Graph


def activate(graph: Graph, value: str, activation: Any) -> str:
    """Apply an activation, given as a module or, where a family calls a function, by its name."""
    name = activation if isinstance(activation, str) else type(activation).__name__
    if name not in ACTIVATIONS:
        known = ", ".join(sorted(ACTIVATIONS))
        raise UnsupportedModel(f"the activation {name} cannot be exported; supported are {known}")
    return ACTIVATIONS[name](graph, value)


def _gelu(graph: Graph, value: str) -> str:
    # The runtimes recognise this order of nodes and run it as one kernel.
    inner = graph.node("Erf", graph.node("Div", value, graph.floats(math.sqrt(2.0))))
    doubled = graph.node("Mul", value, graph.node("Add", inner, graph.floats(1.0)))
    return graph.node("Mul", doubled, graph.floats(0.5))


def _gelu_tanh(graph: Graph, value: str) -> str:
    cubed = graph.node("Mul", graph.node("Pow", value, graph.floats(3.0)), graph.floats(0.044715))
    inner = graph.node("Mul", graph.node("Add", value, cubed), graph.floats(math.sqrt(2.0 / math.pi)))
    outer = graph.node("Add", graph.node("Tanh", inner), graph.floats(1.0))
    return graph.node("Mul", graph.node("Mul", value, graph.floats(0.5)), outer)


def _quick_gelu(graph: Graph, value: str) -> str:
    gate = graph.node("Sigmoid", graph.node("Mul", value, graph.floats(1.702)))
    return graph.node("Mul", value, gate)


def _silu(graph: Graph, value: str) -> str:
    return graph.node("Mul", value, graph.node("Sigmoid", value))


def _plain(operator: str) -> Callable[[Graph, str], str]:
    return lambda graph, value: graph.node(operator, value)


ACTIVATIONS: dict[str, Callable[[Graph, str], str]] = {
    "AccurateGELUActivation": _gelu_tanh,
    "FastGELUActivation": _gelu_tanh,
    "GELUActivation": _gelu,
    "GELUTanh": _gelu_tanh,
    "NewGELUActivation": _gelu_tanh,
    "QuickGELUActivation": _quick_gelu,
    "ReLU": _plain("Relu"),
    "SiLU": _silu,
    "SiLUActivation": _silu,
    "Sigmoid": _plain("Sigmoid"),
    "Tanh": _plain("Tanh"),
}
"""By the class names of torch and transformers."""
