"""What sentence-transformers puts behind an encoder, as ONNX nodes: from the states of tokens to an embedding."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from hashee.data.output_types import PlainPooling, pooling_told
from hashee.engine.adapter import HeadLayers
from hashee.errors import UnsupportedModel
from hashee.export.graph import Graph
from hashee.export.layers import run_head
from hashee.export.packing import Packing

OUTPUT = "sentence_embedding"
"""The name that sentence-transformers gives it."""
_SMALLEST_NORM = 1e-12
"""As torch.nn.functional.normalize has it."""


@dataclass(frozen=True)
class EmbeddingHead:
    """A pooling and the modules behind it."""

    pooling: PlainPooling
    modules: tuple[nn.Module, ...]

    @property
    def reads_first(self) -> bool:
        """Whether it reads the states of the first positions alone."""
        return self.pooling is PlainPooling.CLS

    def output_width(self, width: int) -> int:
        """Return the width of embeddings of states of a width."""
        for module in self.modules:
            if type(module).__name__ == "Dense":
                width = _LAYERS["Dense"](module)[0].out_features
        return width

    def write(self, graph: Graph, pooled: str) -> str:
        """Write what follows the pooling. pooled: (batch, width)."""
        for module in self.modules:
            if type(module).__name__ == "Normalize":
                pooled = _normalized(graph, pooled)
            else:
                pooled = run_head(graph, pooled, _LAYERS[type(module).__name__](module))
        return pooled


def embedding_head(model: nn.Module) -> EmbeddingHead:
    """Return the head of a SentenceTransformer, or refuse it."""
    _, *modules = model.children()
    if not modules or type(modules[0]).__name__ != "Pooling":
        held = ", ".join(type(module).__name__ for module in modules) or "nothing"
        raise UnsupportedModel(f"behind the encoder of this model comes {held}; a Pooling is what can be exported")
    for module in modules[1:]:
        if type(module).__name__ not in _LAYERS:
            raise UnsupportedModel(
                f"a {type(module).__name__} behind the pooling cannot be exported; {', '.join(_LAYERS)} can"
            )
    return EmbeddingHead(_pooling_of(modules[0]), tuple(modules[1:]))


def mean_of_rows(graph: Graph, rows: str, packing: Packing, width: int) -> str:
    """Return the mean state of the tokens of every text: (tokens + 1, width), the last one zero -> (batch, width)."""
    g = graph
    shape = g.node("Concat", g.node("Shape", "input_ids"), g.ints([width]), axis=0)
    states = g.node("Reshape", g.gather(rows, packing.row_of_position), shape)
    count = g.node("Cast", g.sum("attention_mask", 1), to=g.onnx.TensorProto.FLOAT)
    return g.node("Div", g.sum(states, 1), g.node("Unsqueeze", g.node("Max", count, g.floats(1.0)), g.ints([1])))


def _pooling_of(module: Any) -> PlainPooling:
    """Return how a Pooling of sentence-transformers makes one vector of many."""
    config = module.get_config_dict()
    pooling = pooling_told(config)
    if pooling is None:
        asked = config.get("pooling_mode", "of this model")
        raise UnsupportedModel(
            f"the pooling {asked} cannot be exported; {PlainPooling.MEAN} and {PlainPooling.CLS} can"
        )
    return pooling


def _normalized(graph: Graph, rows: str) -> str:
    """Return rows of length 1: (batch, width) -> (batch, width)."""
    squares = graph.node("Unsqueeze", graph.sum(graph.node("Mul", rows, rows), 1), graph.ints([1]))
    return graph.node("Div", rows, graph.node("Max", graph.node("Sqrt", squares), graph.floats(_SMALLEST_NORM)))


def _dense(module: Any) -> HeadLayers:
    if getattr(module, "use_residual", False):
        raise UnsupportedModel("a Dense with a residual behind the pooling cannot be exported")
    plain = type(module.activation_function).__name__ == "Identity"
    return (module.linear,) if plain else (module.linear, module.activation_function)


_LAYERS: dict[str, Callable[[Any], HeadLayers]] = {
    "Normalize": lambda module: (),
    "Dropout": lambda module: (),
    "Dense": _dense,
    "LayerNorm": lambda module: (module.norm,),
}
"""Modules that may follow the pooling, by their class, with the layers that they run."""
