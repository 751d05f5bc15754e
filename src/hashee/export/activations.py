"""The activation functions of the supported families as ONNX nodes."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hashee.errors import UnsupportedModel
from hashee.export.graph import Graph


@dataclass(frozen=True)
class Activation:
    """An activation function as nodes."""

    write: Callable[[Graph, str], str]
    least: float | None = None
    """A number that it never falls below, if that is near zero."""


def activate(graph: Graph, value: str, activation: Any) -> str:
    """Apply an activation, given as a module or, where a family calls a function, by its name."""
    return activation_of(activation).write(graph, value)


def activation_of(activation: Any) -> Activation:
    """Return an activation, given as a module or by its name, or refuse it."""
    name = activation if isinstance(activation, str) else type(activation).__name__
    if name not in ACTIVATIONS:
        known = ", ".join(sorted(ACTIVATIONS))
        raise UnsupportedModel(f"the activation {name} cannot be exported; supported are {known}")
    return ACTIVATIONS[name]


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


_GELU, _GELU_TANH = Activation(_gelu, least=-0.1701), Activation(_gelu_tanh, least=-0.1701)
_SILU = Activation(_silu, least=-0.2785)
ACTIVATIONS: dict[str, Activation] = {
    "AccurateGELUActivation": _GELU_TANH,
    "FastGELUActivation": _GELU_TANH,
    "GELUActivation": _GELU,
    "GELUTanh": _GELU_TANH,
    "NewGELUActivation": _GELU_TANH,
    "QuickGELUActivation": Activation(_quick_gelu, least=-0.1637),
    "ReLU": Activation(_plain("Relu"), least=0.0),
    "SiLU": _SILU,
    "SiLUActivation": _SILU,
    "Sigmoid": Activation(_plain("Sigmoid"), least=0.0),
    "Tanh": Activation(_plain("Tanh")),
}
"""By the class names of torch and transformers."""
