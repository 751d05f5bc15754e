"""Making converted models known to transformers' Auto classes without importing either before it is needed.

`import hashee` calls `register_on_use`. As soon as transformers' `AutoConfig` exists, every model type of hashee gets a
stand-in there, which is cheap; the first folder that asks for one imports `hashee.hf.classes`, which registers them.
"""

import importlib
import importlib.util
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from hashee.families import FAMILIES, PREFIX

_AUTO_CONFIG = "transformers.models.auto.configuration_auto"
_FAMILIES = "hashee.hf.classes"

Action = Callable[[ModuleType], None]


def register_on_use() -> None:
    """Register stand-ins now if transformers is there, else when it comes, and the classes when they are made."""
    _after_import(_AUTO_CONFIG, _add_stand_ins)
    # Unpickling a converted model, or importing its class by name, imports that module as well.
    _after_import(_FAMILIES, lambda families: families.register_families())


# --- stand-ins ---------------------------------------------------------------------------------------------


class _StandIn:
    """Stands for a config class in `AutoConfig` until the first config is read or made."""

    model_type: str

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return _real_class(cls)(*args, **kwargs)

    @classmethod
    def from_dict(cls, *args: Any, **kwargs: Any) -> Any:
        """Read a config with the class that this stands for."""
        return _real_class(cls).from_dict(*args, **kwargs)

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """Read a config with the class that this stands for."""
        return _real_class(cls).from_pretrained(*args, **kwargs)


def _add_stand_ins(auto_config: ModuleType) -> None:
    converted = [PREFIX + family.model_type for family in FAMILIES]
    dense = [family.model_type for family in FAMILIES if not family.is_in_transformers]
    for model_type in (*converted, *dense):
        if model_type in auto_config.CONFIG_MAPPING:
            continue
        stand_in = type("StandIn", (_StandIn,), {"model_type": model_type, "__module__": __name__})
        auto_config.AutoConfig.register(model_type, stand_in, exist_ok=True)


def _real_class(stand_in: type[_StandIn]) -> Any:
    """Register all families, and return the config class that a stand-in stands for."""
    # Python lets one thread import a module and the others wait for it, so none sees half of the classes.
    families = importlib.import_module(_FAMILIES)
    known = sys.modules[_AUTO_CONFIG].CONFIG_MAPPING
    if issubclass(known[stand_in.model_type], _StandIn):
        families.register_families()  # transformers was imported a second time
    if issubclass(known[stand_in.model_type], _StandIn):
        raise ImportError(
            f"the installed transformers has no {stand_in.model_type.removeprefix(PREFIX)} models, which "
            f"{stand_in.model_type} is made of; upgrade transformers"
        )
    return known[stand_in.model_type]


# --- doing something after an import -----------------------------------------------------------------------


def _after_import(name: str, action: Action) -> None:
    """Call `action` with a module once it is imported, which may be now."""
    _Finder.actions[name] = action
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    if name in sys.modules:
        # Another thread may be importing it this moment; this waits until it is done.
        action(importlib.import_module(name))


class _Finder(MetaPathFinder):
    """Lets the other finders find a module, and calls the action that belongs to it when it has been executed."""

    actions: dict[str, Action] = {}

    def __init__(self) -> None:
        self._searching = threading.local()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec that the other finders give, with a loader that calls the action afterwards."""
        if fullname not in self.actions or getattr(self._searching, "name", None) == fullname:
            return None
        self._searching.name = fullname
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._searching.name = None
        if spec is not None and spec.loader is not None:
            spec.loader = _LoaderWithAction(spec.loader, self.actions[fullname])
        return spec


class _LoaderWithAction(Loader):
    """Executes a module as its own loader does, and then an action."""

    def __init__(self, loader: Loader, action: Action) -> None:
        self._loader, self._action = loader, action

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Make the module as its own loader does."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module, which keeps nothing of this loader."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._action(module)
