"""Linear layers with int8 weights, for which every row of activations is rounded by its own range as it comes.

Weights are symmetric per output channel. A row x from l to l + r becomes `(x - l) / r` between 0 and 1, which is what
is rounded, and `x W^T = r ((x - l) / r) W^T + l (W 1)^T` puts it back. A row's output thus never depends on which other
rows are in the batch, as it would if the batch shared one range.

Our own kernels run them (`native/int8.py`). Without these torch's int8 kernels do and, where torch has none either, the
same integers are multiplied as float32, block by block: the same memory, but no faster than float32.
"""

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from hashee.engine.native import int8
from hashee.errors import UnsupportedOption

ENGINE = "fbgemm"
"""torch's int8 kernels for x86 processors; packed for by name, since torch's default engine differs by processor."""
STEPS = 127
"""Steps from zero to the largest weight of a channel, and, in torch, from the least to the largest entry of a row.
Without VNNI instructions kernels add two products in 16 bits, which more than 7 bits a row would overflow."""
SMALLEST = 1e-30
"""Stands in for a range of zero."""
BLOCK = 256
"""Output channels that are multiplied at a time where there are no int8 kernels."""
KERNELS = ("linear_prepack", "linear_with_input_q_dq_qweight_dq_output_fp32")
"""In `torch.ops.quantized`, which torch has announced to remove."""


class Int8Linear(nn.Module):
    """A linear layer with int8 weights, for inference in float32 on the CPU."""

    int8_weight: Tensor
    """int8, in the blocks that kernels take (`to_blocks`) if the shape allows, otherwise (outputs, inputs); the name is
    not `weight`, so that float weights are never loaded into it."""
    weight_step: Tensor
    """(outputs,) what one step of a weight is worth."""
    bias: Tensor
    """(outputs,)"""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        weight = linear.weight.detach()
        step = (torch.maximum(weight.amax(1), -weight.amin(1)) / STEPS).clamp_min(SMALLEST)
        bias = weight.new_zeros(self.out_features) if linear.bias is None else linear.bias.detach().clone()
        # Some channels at a time, since whole temporary matrices would leave holes in memory that stay.
        parts = zip(weight.split(BLOCK), step[:, None].split(BLOCK), strict=True)
        rounded = [(channels / steps).round_().to(torch.int8) for channels, steps in parts]
        blocks = [int8.to_blocks(channels) for channels in rounded] if self.is_blocked else rounded
        self.register_buffer("int8_weight", torch.cat(blocks))
        self.register_buffer("weight_step", step)
        self.register_buffer("bias", bias)
        self._prepare()
        self.eval()

    def _prepare(self) -> None:
        """Derive what products need from the weights."""
        self._sums = self._integers().sum(1) * self.weight_step
        self._packed: Any = None
        self._column_sums: dict[int, Tensor] = {}

    @property
    def is_blocked(self) -> bool:
        """Whether the weight lies in blocks, as our kernels take it."""
        return int8.is_blocked(self.out_features, self.in_features)

    def _integers(self) -> Tensor:
        """Return the weight as a matrix: (outputs, inputs)."""
        return int8.from_blocks(self.int8_weight) if self.is_blocked else self.int8_weight

    def runs_in_kernels(self, rows: Tensor) -> bool:
        """Return whether our kernels take these rows."""
        return self.is_blocked and rows.ndim == 2 and rows.stride(1) == 1 and int8.available()

    def fields(self) -> list[int]:
        """Return the addresses of the blocks of weights, of their steps and sums, and of the bias."""
        return [tensor.data_ptr() for tensor in self.tensors()]

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the blocks of weights, their steps and sums, and the bias."""
        return self.int8_weight, self.weight_step, self._sums, self.bias

    def column_sums(self, heads: int) -> Tensor:
        """Return the sums of the integers over the rows of each head: (heads, inputs)."""
        if heads not in self._column_sums:
            self._column_sums[heads] = self._integers().view(heads, -1, self.in_features).sum(1).float()
        return self._column_sums[heads]

    def forward(self, rows: Tensor) -> Tensor:
        """Multiply by the weight and add the bias: (rows, inputs) -> (rows, outputs)."""
        self.check(rows)
        if len(rows) and self.runs_in_kernels(rows):
            return int8.linear(rows, self)
        least = rows.amin(1, keepdim=True)
        reach = (rows.amax(1, keepdim=True) - least).clamp_min_(SMALLEST)
        shares = (rows - least).div_(reach)
        if has_torch_kernels():
            self._packed = _pack(self._integers(), self.weight_step) if self._packed is None else self._packed
            product = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
                shares, 1 / STEPS, 0, self._packed
            )
        else:
            product = _multiply(shares, self._integers(), self.weight_step)
        return torch.addcmul(self.bias, product, reach).addcmul_(least, self._sums)

    def check(self, rows: Tensor) -> None:
        """Raise for rows that must not be rounded."""
        if self.training or rows.requires_grad:
            raise UnsupportedOption(
                "int8 layers cannot be trained and pass no gradients on; train the float32 model and quantize it again "
                "(to run this one, call eval())"
            )
        if rows.dtype != torch.float32 or rows.device.type != "cpu" or torch.is_autocast_enabled("cpu"):
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

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        moved = super()._apply(*args, **kwargs)
        self._prepare()
        return moved

    def __getstate__(self) -> dict[str, Any]:
        # What is derived is not copied: addresses and torch's layout cannot be, and a copy derives its own.
        derived = ("_packed", "_sums", "_column_sums")
        return {name: value for name, value in self.__dict__.items() if name not in derived}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._prepare()


def has_kernels() -> bool:
    """Return whether int8 is faster than float32 here, by our kernels or by torch's."""
    return int8.available() or has_torch_kernels()


def has_torch_kernels() -> bool:
    """Return whether this processor and torch have int8 kernels; none of their names is one that torch must keep."""
    engines = getattr(getattr(torch.backends, "quantized", None), "supported_engines", ())
    operations = getattr(torch.ops, "quantized", None)
    return (
        ENGINE in engines
        and all(hasattr(operations, name) for name in KERNELS)
        and hasattr(torch, "_make_per_channel_quantized_tensor")
    )


def _pack(weight: Tensor, step: Tensor) -> Any:
    """Lay int8 weights (outputs, inputs) out for torch's kernels; step: (outputs,)."""
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


def _multiply(shares: Tensor, weight: Tensor, step: Tensor) -> Tensor:
    """Do what torch's kernel does, with operations that are here to stay.

    shares: (rows, inputs) between 0 and 1; weight: (outputs, inputs) int8; step: (outputs,). Returns (rows, outputs).
    """
    steps = (shares * STEPS).round_()
    blocks = [torch.nn.functional.linear(steps, block.float()) for block in weight.split(BLOCK)]
    return torch.cat(blocks, dim=1).mul_(step / STEPS)
