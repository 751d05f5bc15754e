"""A post-norm layer in training on a CPU: products in torch, everything between them in kernels, gradients by hand.

It computes what the layer computes in torch, in float32 or with products in bfloat16 under autocast, without the
copies, masks and small operations that take much of the time of a step there. Dropout draws seeds for each layer from
torch's generator, so what it drops differs from what torch's own dropout would.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import LayerNorm, Module

from hashee.engine import native
from hashee.engine.activation import is_gelu
from hashee.engine.linear import is_bare, is_bare_linear
from hashee.engine.native import training
from hashee.engine.native.training import Attention, Drop, SublayerEnd


class Weights(NamedTuple):
    """Weights and biases of a layer, in the order of the passes."""

    query: Tensor
    query_bias: Tensor
    key: Tensor
    key_bias: Tensor
    value: Tensor
    value_bias: Tensor
    output: Tensor
    output_bias: Tensor
    attention_gain: Tensor
    attention_shift: Tensor
    expand: Tensor
    expand_bias: Tensor
    contract: Tensor
    contract_bias: Tensor
    gain: Tensor
    shift: Tensor

    @property
    def products(self) -> tuple[Tensor, ...]:
        """The weights of the six products."""
        return self.query, self.key, self.value, self.output, self.expand, self.contract


@dataclass(frozen=True)
class Pass:
    """One pass of a layer: its settings, and what the dropouts of this pass are."""

    attention: Attention
    epsilons: tuple[float, float]
    """Of the norms after attention and after the feed-forward."""
    drops: tuple[Drop, Drop]
    """Of the outputs of attention and of the feed-forward."""
    active: int
    dtype: torch.dtype
    """Of the products."""

    def ends(self, weights: Weights) -> tuple[SublayerEnd, SublayerEnd]:
        """Return how the two sub-layers end."""
        attention = (weights.output_bias, weights.attention_gain, weights.attention_shift)
        feed_forward = (weights.contract_bias, weights.gain, weights.shift)
        return (
            SublayerEnd(*attention, self.epsilons[0], self.drops[0]),
            SublayerEnd(*feed_forward, self.epsilons[1], self.drops[1]),
        )


def weights_of(linears: tuple[Module, ...], norms: tuple[Module, Module], activation: Any) -> Weights | None:
    """Return the weights of a layer, or None if kernels cannot train it.

    linears: queries, keys, values, output, expand, contract.
    """
    if not (is_gelu(activation) and all(map(is_bare_linear, linears))):
        return None
    if not all(is_bare(norm, LayerNorm) for norm in norms):
        return None
    query, key, value, output, expand, contract = linears
    order = (query, key, value, output, norms[0], expand, contract, norms[1])
    found = [weight for module in order for weight in module._parameters.values()]
    if any(
        weight is None
        or weight.dtype != torch.float32
        or weight.device.type != "cpu"
        or not weight.is_contiguous()
        or weight.shape[0] % 8
        for weight in found
    ):
        return None
    return Weights(*found)  # type: ignore[arg-type]


def product_type(hidden: Tensor) -> torch.dtype | None:
    """Return the precision that products of float32 states have here, or None where kernels do not take it."""
    if hidden.dtype != torch.float32 or hidden.device.type != "cpu" or not torch.is_grad_enabled():
        return None
    if torch.compiler.is_compiling() or native.library() is None:
        return None
    if not torch.is_autocast_enabled("cpu"):
        return torch.float32
    return torch.bfloat16 if torch.get_autocast_dtype("cpu") == torch.bfloat16 else None


def drops(*probabilities: float) -> list[Drop]:
    """Return dropouts with seeds from torch's generator; what drops nothing needs none."""
    if not any(probabilities):
        return [Drop(0.0, 0) for _ in probabilities]
    seeds = torch.randint(2**31, (len(probabilities),)).tolist()
    return [Drop(probability, seed) for probability, seed in zip(probabilities, seeds, strict=True)]


def train_layer(hidden: Tensor, weights: Weights, settings: Pass) -> Tensor:
    """Return the new states of the active rows: (tokens, width) -> (active, width), float32."""
    updated: Tensor = _TrainedLayer.apply(hidden, settings, *weights)
    return updated


class _TrainedLayer(torch.autograd.Function):
    """The layer with its gradients."""

    @staticmethod
    def forward(context: Any, hidden: Tensor, settings: Pass, *parameters: Tensor) -> Tensor:
        weights, active = Weights(*parameters), settings.active
        hidden = hidden.contiguous()
        with torch.autocast("cpu", enabled=False):
            products = [weight.to(settings.dtype) for weight in weights.products]
            to_query, to_key, to_value, to_output, to_expand, to_contract = (weight.t() for weight in products)
            query_bias, key_bias, value_bias = (
                bias.to(settings.dtype) for bias in (weights.query_bias, weights.key_bias, weights.value_bias)
            )
            after_attention, after_feed_forward = settings.ends(weights)
            rows = hidden.to(settings.dtype)
            query = torch.addmm(query_bias, rows[:active], to_query)
            key, value = torch.addmm(key_bias, rows, to_key), torch.addmm(value_bias, rows, to_value)
            attended = settings.attention.forward(query, key, value)
            middle = after_attention.forward(attended @ to_output, hidden[:active])
            expanded = middle.copy @ to_expand
            inner = training.gelu(expanded, weights.expand_bias)
            end = after_feed_forward.forward(inner @ to_contract, middle.states)
        # Weights that were rounded for the products are kept, as autocast keeps them.
        context.products = products
        context.settings = settings
        context.save_for_backward(
            *parameters,
            *(rows, query, key, value, attended, middle.copy, middle.normed, middle.scale),
            *(expanded, inner, end.normed, end.scale),
        )
        return end.states

    @staticmethod
    @once_differentiable
    def backward(context: Any, *grads: Tensor) -> Any:
        settings: Pass = context.settings
        saved = context.saved_tensors
        weights = Weights(*saved[: len(Weights._fields)])
        rows, query, key, value, attended, middle, middle_normed, middle_scale = saved[len(weights) : len(weights) + 8]
        expanded, inner, normed, scale = saved[len(weights) + 8 :]
        dtype, active = settings.dtype, settings.active
        to_query, to_key, to_value, to_output, to_expand, to_contract = context.products
        after_attention, after_feed_forward = settings.ends(weights)
        with torch.autocast("cpu", enabled=False):
            # A gradient may be another's memory, and it is overwritten here.
            grad = grads[0].clone(memory_format=torch.contiguous_format)
            contract_grad, gain, shift, contract_bias = after_feed_forward.backward_(grad, normed, scale, dtype)
            inner_grad = contract_grad @ to_contract
            contract = contract_grad.t() @ inner
            expand_bias = training.gelu_backward_(expanded, weights.expand_bias, inner_grad)
            expand = inner_grad.t() @ middle
            grad += inner_grad @ to_expand
            ended = after_attention.backward_(grad, middle_normed, middle_scale, dtype)
            output_grad, attention_gain, attention_shift, output_bias = ended
            output = output_grad.t() @ attended
            attended_grad = output_grad @ to_output
            from_query, from_key, from_value = settings.attention.backward(query, key, value, attended_grad)
            hidden = (from_key @ to_key).float()
            hidden += from_value @ to_value
            hidden[:active] += from_query @ to_query
            hidden[:active] += grad
            own = Weights(
                query=from_query.t() @ rows[:active],
                query_bias=from_query.sum(0, dtype=torch.float32),
                key=from_key.t() @ rows,
                key_bias=from_key.sum(0, dtype=torch.float32),
                value=from_value.t() @ rows,
                value_bias=from_value.sum(0, dtype=torch.float32),
                output=output,
                output_bias=output_bias,
                attention_gain=attention_gain,
                attention_shift=attention_shift,
                expand=expand,
                expand_bias=expand_bias,
                contract=contract,
                contract_bias=contract_bias,
                gain=gain,
                shift=shift,
            )
        return (
            hidden if context.needs_input_grad[0] else None,
            None,
            *(each.float() if wanted else None for each, wanted in zip(own, context.needs_input_grad[2:], strict=True)),
        )
