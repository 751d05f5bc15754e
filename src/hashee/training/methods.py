"""The methods that `hashee fit --method` knows, by name."""

from hashee.errors import InputError
from hashee.training.hash_exits import HashExits
from hashee.training.method import Method

METHODS: dict[str, Method] = {}


def register_method(method: Method) -> None:
    """Make a method known under its name; a name is given once."""
    if method.name in METHODS:
        raise InputError(f"there is a method {method.name!r} already; choose another name")
    METHODS[method.name] = method


def method_named(name: str) -> Method:
    """Return the method of a name."""
    if name not in METHODS:
        raise InputError(f"unknown method {name!r}; choose from {', '.join(METHODS)}")
    return METHODS[name]


register_method(HashExits())
