"""int8 on top of exits: one byte a weight, and every row of activations rounded by its own range as it comes.

Weights are symmetric per output channel. A row x from l to l + r becomes `(x - l) / r` between 0 and 1, which is what
the kernel rounds, and `x W^T = r ((x - l) / r) W^T + l (W 1)^T` puts it back. A row's output thus never depends on
which other rows are in the batch, as it would if the batch shared one range.

Without torch's int8 kernels (another processor, or a torch that has dropped them) the same integers are multiplied as
float32, block by block: the same outputs and the same memory, but no faster than float32.
"""

import copy
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from hashee.engine.linear import is_bare_linear
from hashee.errors import UnsupportedModel, UnsupportedOption
from hashee.hf.model import HashedModel

log = logging.getLogger(__name__)

ENGINE = "fbgemm"
"""torch's int8 kernels for x86 processors; packed for by name, since torch's default engine differs by processor."""
STEPS = 127
"""Steps from zero to the largest weight of a channel, and from the least to the largest entry of a row. Without VNNI
instructions the kernels add two products in 16 bits, which more than 7 bits a row would overflow; keeping to 7
everywhere gives the same outputs on every processor."""
SMALLEST = 1e-30
"""Stands in for a range of zero."""
METHODS = ("int8",)
BLOCK = 256
"""Output channels that are multiplied at a time where there are no int8 kernels."""
KERNELS = ("linear_prepack", "linear_with_input_q_dq_qweight_dq_output_fp32")
"""In `torch.ops.quantized`, which torch has announced to remove."""


class Int8Linear(nn.Module):
    """A linear layer with int8 weights, for inference in float32 on the CPU."""

    int8_weight: Tensor
    """(outputs, inputs) int8; the name is not `weight`, so that float weights are never loaded into it."""
    weight_step: Tensor
    """(outputs,) what one step of a weight is worth."""
    bias: Tensor
    """(outputs,)"""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        weight = linear.weight.detach()
        step = (weight.abs().amax(1) / STEPS).clamp_min(SMALLEST)
        bias = weight.new_zeros(self.out_features) if linear.bias is None else linear.bias.detach().clone()
        self.register_buffer("int8_weight", (weight / step[:, None]).round().to(torch.int8))
        self.register_buffer("weight_step", step)
        self.register_buffer("bias", bias)
        self._prepare()
        self.eval()

    def _prepare(self) -> None:
        """Derive what the kernel takes from the weights: its own layout of them, and their sums."""
        self._packed = _pack(self.int8_weight, self.weight_step) if has_kernels() else None
        self._sums = self.int8_weight.sum(1) * self.weight_step

    def forward(self, rows: Tensor) -> Tensor:
        """Multiply by the weight and add the bias: (rows, inputs) -> (rows, outputs)."""
        self._check(rows)
        least = rows.amin(1, keepdim=True)
        reach = (rows.amax(1, keepdim=True) - least).clamp_min_(SMALLEST)
        shares = (rows - least).div_(reach)
        if self._packed is None:
            product = _multiply(shares, self.int8_weight, self.weight_step)
        else:
            product = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
                shares, 1 / STEPS, 0, self._packed
            )
        return torch.addcmul(self.bias, product, reach).addcmul_(least, self._sums)

    def _check(self, rows: Tensor) -> None:
        if self.training or rows.requires_grad:
            raise UnsupportedOption(
                "int8 layers cannot be trained and pass no gradients on; train the float32 model and quantize it again "
                "(to run this one, call eval())"
            )
        if rows.dtype != torch.float32 or rows.device.type != "cpu":
            raise UnsupportedOption(
                f"int8 layers run in float32 on the CPU, not in {rows.dtype} on {rows.device}; quantize a float32 "
                "model on the CPU, and run it without autocast"
            )

    def extra_repr(self) -> str:
        """Return what `print(model)` shows."""
        return f"in_features={self.in_features}, out_features={self.out_features}"

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._prepare()

    def __getstate__(self) -> dict[str, Any]:
        # The kernel's layout cannot be copied; a copy of the layer makes its own.
        return {name: value for name, value in self.__dict__.items() if name not in ("_packed", "_sums")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._prepare()


def quantize(model: Any) -> Any:
    """Return a converted model of the same class whose encoder runs with int8 weights, for inference on CPUs.

    Everything else (embeddings, norms, heads, exits) stays as it is and is shared with `model`, which is left alone.
    """
    if not isinstance(model, HashedModel):
        raise UnsupportedModel(
            f"{type(model).__name__} is not a converted model; quantize what hashee.convert or hashee.load returned"
        )
    if not has_kernels():
        log.warning("no int8 kernels of torch %s here: int8 saves memory, but no time", torch.__version__)
    _check_device(model)
    quantized = _sharing_copy(model).eval()
    encoder = quantized.hashed_encoder
    names = {module: name for name, module in encoder.named_modules()}
    for module in list(dict.fromkeys(_chosen(encoder))):
        if not (isinstance(module, nn.Linear) and is_bare_linear(module)):
            raise UnsupportedModel(
                f"{names[module]} is a {type(module).__name__}, not a bare Linear layer, or carries hooks; merge "
                "adapters (merge_and_unload) and remove hooks before quantizing, and quantize once"
            )
        encoder.set_submodule(names[module], Int8Linear(module))
    quantized.save_pretrained = _refuse_to_save
    return quantized


def _chosen(encoder: Any) -> Iterator[nn.Module]:
    """Yield the layers to quantize, some of them several times where layers share weights."""
    adapter = encoder.adapter
    absorbs = adapter.shape(encoder.config).absorbable
    lowest = int(encoder.exit_layers.min())
    for number, block in enumerate(adapter.blocks(encoder)):
        yield from (block.attention.output, *block.feed_forward.modules)
        if number == 0 and adapter.summed_embeddings is not None:
            continue  # what the first layer projects is looked up, which beats any product
        first, *others = block.attention.projections.modules
        yield first
        # Where tokens have exited, the absorbed form of attention reads few rows of keys' and values' in float32.
        if not absorbs or block.layer <= lowest:
            yield from others


def _pack(weight: Tensor, step: Tensor) -> Any:
    """Lay int8 weights (outputs, inputs) out for the kernels; step: (outputs,)."""
    engine = torch.backends.quantized.engine
    torch.backends.quantized.engine = ENGINE
    try:
        with warnings.catch_warnings():
            # The only way to these kernels is through a kind of tensor that torch wants to do without one day.
            warnings.filterwarnings("ignore", message=".*quantized tensor creation functions.*")
            zeros = torch.zeros(len(step), dtype=torch.long)
            tensor = torch._make_per_channel_quantized_tensor(weight, step.double(), zeros, 0)
        return torch.ops.quantized.linear_prepack(tensor, None)
    finally:
        torch.backends.quantized.engine = engine


def has_kernels() -> bool:
    """Say whether this processor and this torch have int8 kernels; none of their names is one that torch must keep."""
    engines = getattr(getattr(torch.backends, "quantized", None), "supported_engines", ())
    operations = getattr(torch.ops, "quantized", None)
    return (
        ENGINE in engines
        and all(hasattr(operations, name) for name in KERNELS)
        and hasattr(torch, "_make_per_channel_quantized_tensor")
    )


def _multiply(shares: Tensor, weight: Tensor, step: Tensor) -> Tensor:
    """Do what the kernel does, with operations that are here to stay.

    shares: (rows, inputs) between 0 and 1; weight: (outputs, inputs) int8; step: (outputs,). Returns (rows, outputs).
    """
    steps = (shares * STEPS).round_()
    blocks = [torch.nn.functional.linear(steps, block.float()) for block in weight.split(BLOCK)]
    return torch.cat(blocks, dim=1).mul_(step / STEPS)


def _check_device(model: Any) -> None:
    for parameter in model.hashed_encoder.parameters():
        if parameter.dtype != torch.float32 or parameter.device.type != "cpu":
            raise UnsupportedOption(
                f"the model is in {parameter.dtype} on {parameter.device}, but int8 is for float32 models on the CPU; "
                "call model.float().cpu() first"
            )


def _sharing_copy(model: Any) -> Any:
    """Return a copy of a model that shares its tensors; they are frozen in the copy, which cannot be trained."""
    shared: dict[int, Any] = {id(buffer): buffer for buffer in model.buffers()}
    for parameter in model.parameters():
        shared[id(parameter)] = nn.Parameter(parameter.detach(), requires_grad=False)
    return copy.deepcopy(model, shared)


def _refuse_to_save(*_: Any, **__: Any) -> None:
    raise UnsupportedOption(
        "an int8 model is not saved; save the float32 model that it was made from and quantize after loading: "
        'hashee.load(folder, quantize="int8")'
    )
