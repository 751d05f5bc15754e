"""Where weights lie in memory."""

from torch import nn

LINE = 64
"""Bytes that a processor fetches together."""


def settle_(module: nn.Module) -> None:
    """Move weights on the processor that begin within a line of its cache to where one begins.

    Weights that transformers has mapped from a file do: their header has any length. From memory of their own kernels
    on few rows read them in about three quarters of the time.
    """
    for parameter in module.parameters():
        if type(parameter) is nn.Parameter and parameter.device.type == "cpu" and parameter.data_ptr() % LINE:
            parameter.data = parameter.data.clone()
