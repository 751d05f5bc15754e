"""Checking that two models have the same modules, and sharing the tensors of one with the other."""

from typing import Any

from torch import nn

from hashee.engine.adapter import is_library_class
from hashee.errors import UnsupportedModel

PLAIN = (bool, int, float, str, type(None))
"""Types of attributes that are settings, not modules."""


def check_structure(source: nn.Module, target: nn.Module) -> None:
    """Raise unless a converted model, built from a config, has exactly the modules of the source model.

    The engine computes what transformers' own layers compute, so a layer or head that was replaced, wrapped or patched
    would be ignored silently.
    """
    for name, built in target.named_modules():
        try:
            given = source.get_submodule(name)
        except AttributeError:
            raise _differs(source, f"{name} is missing; build the model anew from its config") from None
        expected = vars(type(built)).get("dense_class", type(built))
        if type(given) is not expected:
            raise _differs(
                source,
                f"{name or 'it'} is a {type(given).__module__}.{type(given).__name__} where its config makes a "
                f"{expected.__name__}; convert first and swap or wrap parts afterwards, or merge adapters before",
            )
        if "forward" in vars(given):
            raise _differs(source, f"the forward pass of {name or 'the model'} was replaced; convert first")
        more = set(dict(given.named_children())) - set(dict(built.named_children()))
        # Lists of layers are truncated to the table's depth.
        if more and not isinstance(built, nn.ModuleList | nn.ModuleDict):
            raise _differs(
                source, f"{'.'.join(filter(None, (name, min(more))))} is no part of its class; add it after converting"
            )


def share_tensors(source: nn.Module, target: nn.Module) -> None:
    """Make a model share the parameters and buffers of another that have the same names, and copy its settings."""
    parameters = dict(source.named_parameters(remove_duplicate=False))
    buffers = dict(source.named_buffers(remove_duplicate=False))
    for name, _ in list(target.named_parameters(remove_duplicate=False)):
        owner, _, leaf = name.rpartition(".")
        if name not in parameters:
            raise _differs(source, f"the weight {name} is missing; build the model anew from its config")
        target.get_submodule(owner).register_parameter(leaf, parameters[name])
    for name, _ in list(target.named_buffers(remove_duplicate=False)):
        owner, _, leaf = name.rpartition(".")
        if name in buffers:  # the exit tables are not
            target.get_submodule(owner)._buffers[leaf] = buffers[name]
    for name, module in target.named_modules():
        _share_settings(source.get_submodule(name), module)


def _share_settings(source: nn.Module, target: nn.Module) -> None:
    """Copy the settings of a module that may have been changed since it was built."""
    target.training = source.training
    # Of library classes only floats, such as dropout rates, are copied; integers may follow from the depth.
    types = (float,) if is_library_class(type(source)) or type(source).__module__.startswith("torch.") else PLAIN
    for name, value in vars(source).items():
        if type(value) in types and not name.startswith("_"):
            setattr(target, name, value)


def _differs(model: Any, what: str) -> UnsupportedModel:
    return UnsupportedModel(f"this {type(model).__name__} is not as its class and config build it: {what}")
