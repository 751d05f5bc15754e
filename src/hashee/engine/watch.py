"""Noticing that modules are no longer what they were: parts replaced or hooked, attributes set, tensors moved.

What is written into a tensor in place is not noticed: who keeps addresses reads what is there. Dropout is left out,
since it does nothing in inference.
"""

from collections.abc import Iterable
from itertools import chain
from operator import attrgetter
from typing import Any

from torch import Tensor
from torch.nn import Dropout, Embedding, Linear, Module

_OF_ALL = frozenset(Module().__dict__) - {"training"}
"""Attributes that every module has; of those of one class, `training` changes what it does."""
_values, _dtype = dict.values, attrgetter("dtype")


class Watch:
    """Some modules with all that is in them, as they were when it was made.

    Looking must be quick: weights that were read meanwhile have driven every object that is looked at out of the cache.
    """

    def __init__(self, roots: Iterable[Module]) -> None:
        modules = [module for root in roots for module in root.modules() if not isinstance(module, Dropout)]
        named = [each for module in modules for each in (module._modules, module._parameters, module._buffers)]
        self._named: list[Any] = [each for each in named if each]
        self._hooks: list[Any] = [each for m in modules for each in (m._forward_hooks, m._forward_pre_hooks)]
        # All that products and look-ups do follows from their tensors.
        telling = [vars(module) for module in modules if type(module) not in (Linear, Embedding)]
        self._attributes = [(of, name) for of in telling for name in of if name not in _OF_ALL]
        self._all_attributes = telling
        self._types = [*map(type, modules)]
        self._modules = modules
        self._tensors = [each for filled in self._named for each in filled.values() if isinstance(each, Tensor)]
        # Whatever is compared by its identity must live as long as this does.
        self._held = [*chain.from_iterable(map(_values, self._named)), *(of[name] for of, name in self._attributes)]
        self._known = self._now()

    def sees_no_change(self) -> bool:
        """Return whether everything is as it was."""
        try:
            return self._now() == self._known
        except KeyError:
            return False  # an attribute is gone

    def _now(self) -> tuple[list[Any], ...]:
        """Return what tells of changes, in numbers and classes, which compare fast."""
        tensors = self._tensors
        return (
            [*map(id, chain.from_iterable(map(_values, self._named)))],
            [id(of[name]) for of, name in self._attributes],
            [*map(len, self._all_attributes)],
            [*map(len, self._hooks)],
            [*map(Tensor.data_ptr, tensors)],
            [*map(Tensor.numel, tensors)],
            [*map(Tensor.is_contiguous, tensors)],
            [*map(_dtype, tensors)],
            [*map(type, self._modules)],
        )
