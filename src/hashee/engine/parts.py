"""The two parts of a layer, attention and feed-forward: references to Hugging Face modules, and the cost of each part.

A family chooses its variants: separate or fused projections, rotary positions, a window, a gated feed-forward.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch.nn.functional as F
from torch import Tensor
from torch.nn import Linear, Module

from hashee.engine.activation import activate
from hashee.engine.linear import is_bare_linear, multiply, project
from hashee.engine.relative_attention import DistanceProjections


class Projections(Protocol):
    """What turns states into queries, keys and values; each (rows, width)."""

    @property
    def modules(self) -> tuple[Module, ...]:
        """The linear layers; the first one identifies the set of weights."""

    def queries(self, rows: Tensor) -> Tensor:
        """Return the queries of some rows."""

    def keys_and_values(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values of some rows."""

    def all_three(self, rows: Tensor, active: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the queries of the first `active` rows, and the keys and values of all."""


@dataclass(frozen=True)
class SeparateProjections:
    """One linear layer each for queries, keys and values."""

    query: Module
    key: Module
    value: Module

    @property
    def modules(self) -> tuple[Module, ...]:
        """The three linear layers."""
        return self.query, self.key, self.value

    def queries(self, rows: Tensor) -> Tensor:
        """Return the queries of some rows."""
        return project(self.query, rows)

    def keys_and_values(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values of some rows."""
        return project(self.key, rows), project(self.value, rows)

    def all_three(self, rows: Tensor, active: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the queries of the first `active` rows, and the keys and values of all."""
        return self.queries(rows[:active]), *self.keys_and_values(rows)


@dataclass(frozen=True)
class FusedProjections:
    """One linear layer whose output is queries, keys and values side by side."""

    query_key_value: Module

    @property
    def modules(self) -> tuple[Module, ...]:
        """The one linear layer."""
        return (self.query_key_value,)

    def queries(self, rows: Tensor) -> Tensor:
        """Return the queries of some rows."""
        return self._part(rows, 0, 1)

    def keys_and_values(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values of some rows."""
        key, value = self._part(rows, 1, 3).chunk(2, dim=1)
        return key, value

    def all_three(self, rows: Tensor, active: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the queries of the first `active` rows, and the keys and values of all."""
        if active < len(rows) and is_bare_linear(self.query_key_value):
            # Frozen rows are not updated, so they need no queries.
            return self.queries(rows[:active]), *self.keys_and_values(rows)
        query, key, value = project(self.query_key_value, rows).chunk(3, dim=1)
        return query[:active], key, value

    def _part(self, rows: Tensor, first: int, last: int) -> Tensor:
        """Return some thirds of the output; a bare linear layer multiplies only the rows of its weight for these."""
        module = self.query_key_value
        if not is_bare_linear(module):
            projected: Tensor = module(rows)
            width = projected.shape[1] // 3
            return projected[:, first * width : last * width]
        assert isinstance(module, Linear)
        width = module.out_features // 3
        part = slice(first * width, last * width)
        return multiply(rows, module.weight[part], None if module.bias is None else module.bias[part])


@dataclass(frozen=True)
class AttentionPart:
    """The attention sub-layer: projections, heads, scale and window."""

    projections: Projections
    output: Module
    heads: int
    scale: float
    attention_type: str = ""
    """Key into the adapter's `position_terms`, where layers differ."""
    window: int | None = None
    """Tokens attend to keys at most this many columns of the input away; None: to all."""
    distances: DistanceProjections | None = None
    """Of layers that multiply contents with relative positions."""
    key_value_heads: int | None = None
    """Heads of keys and values where several heads of queries share one; None: as many as of queries."""

    @property
    def shared_heads(self) -> int:
        """Heads of keys and values."""
        return self.heads if self.key_value_heads is None else self.key_value_heads

    def matmul_macs(self, tokens: int, active: int, pairs: int, distances: int = 0) -> int:
        """Return the multiply-accumulates in matrix products of the plain form.

        pairs: of query and key; distances: embeddings of distances that occur, where the layer takes these.
        """
        width = _inputs(self.output)
        shared = width // self.heads * self.shared_heads
        projected = (active * width + 2 * tokens * shared) * _inputs(self.projections.modules[0])
        scores = 2 * pairs * width
        if self.distances is not None:
            by_term = ((self.distances.key, active), (self.distances.query, tokens))
            rows = [(_inputs(module), contents) for module, contents in by_term if module is not None]
            scores += sum(distances * width * (inputs + contents) for inputs, contents in rows)
        return projected + active * width * _outputs(self.output) + scores


@dataclass(frozen=True)
class FeedForwardPart:
    """The feed-forward sub-layer: contract(activation(expand(row)))."""

    expand: Module
    activation: Callable[[Tensor], Tensor]
    contract: Module
    gated: bool = False
    """Whether the second half of the output of `expand` multiplies the activated first half (GLU)."""
    gate: Module | None = None
    """A linear layer of its own whose output multiplies the activated one (T5 1.1, Llama)."""

    @property
    def modules(self) -> tuple[Module, ...]:
        """The linear layers."""
        return (self.expand, *(() if self.gate is None else (self.gate,)), self.contract)

    def inner(self, rows: Tensor) -> Tensor:
        """Return the activated input of `contract`: (rows, width) -> (rows, inner width)."""
        expanded = project(self.expand, rows)
        if self.gate is not None:
            return activate(self.activation, self.expand, expanded) * project(self.gate, rows)
        if not self.gated:
            return activate(self.activation, self.expand, expanded)
        signal, gate = expanded.chunk(2, dim=-1)
        return activate(self.activation, self.expand, signal) * gate

    def matmul_macs(self, active: int) -> int:
        """Return the multiply-accumulates in matrix products."""
        return active * sum(_inputs(module) * _outputs(module) for module in self.modules)


def drop(states: Tensor, probability: float) -> Tensor:
    """Apply dropout if the probability is not zero."""
    return F.dropout(states, probability) if probability > 0 else states


def _inputs(module: Module) -> int:
    size: int = module.in_features  # type: ignore[assignment]
    return size


def _outputs(module: Module) -> int:
    size: int = module.out_features  # type: ignore[assignment]
    return size
