"""How a server runs: where it listens, what it takes, and how models are opened."""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hashee.cost.threads import usable_cores
from hashee.errors import InputError, UnsupportedOption

BACKENDS = ("torch", "int8", "onnx", "openvino")
POOLINGS = ("mean", "cls")


@dataclass(frozen=True)
class ServeSettings:
    """What a server listens to and what it accepts."""

    host: str = "127.0.0.1"
    port: int = 8080
    """0: any free one, which is printed."""
    token: str | None = field(default=None, repr=False)
    """What clients send as `Authorization: Bearer ...`."""
    allow_public: bool = False
    """Whether an address that other machines reach may be served without a token."""
    max_queue_macs: int | None = None
    """Multiply-accumulates that may wait for a model; None: what it runs in `QUEUE_SECONDS`, as measured."""
    max_latency_ms: float = 200.0
    """A request that finds no queue is answered within it: a batch takes at most a third of it."""
    deadline_ms: float = 30_000.0
    """A request that is not answered by then fails."""
    max_batch: int = 256
    """Texts of a request."""
    max_body: int = 2_000_000
    """Bytes of a request."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise InputError(f"port {self.port} is none; use 1 to 65535, or 0 for any free one")
        for name in ("max_latency_ms", "deadline_ms", "max_batch", "max_body"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} is {getattr(self, name)}; use a number above 0")
        if self.max_queue_macs is not None and self.max_queue_macs < 1:
            raise InputError(f"max_queue_macs is {self.max_queue_macs}; use 1 or more, or leave it out")
        if self.token is not None and not (self.token.isascii() and self.token.isprintable() and self.token.strip()):
            raise InputError("a token is ASCII text without line ends; clients send it in a header")
        if self.token is None and not self.allow_public and not is_loopback(self.host):
            raise InputError(
                f"{self.host or 'every address'} can be reached from other machines and there is no token; set one "
                "with --token or HASHEE_TOKEN, listen to 127.0.0.1, or say --allow-public"
            )


QUEUE_SECONDS = 1.0
"""Work that may wait for a model unless `max_queue_macs` is given."""


@dataclass(frozen=True)
class ModelSettings:
    """How one model is opened, in a process of its own."""

    folder: Path
    backend: str = "torch"
    threads: int = 1
    pooling: str | None = None
    """How an encoder's states become an embedding; None: as sentence-transformers' folder says, else the mean."""
    dense: bool = False
    """Whether it is a model without exits, which transformers runs: for comparison."""
    speedup: float | None = None
    """Where it stands in a trade-off, if it comes from one."""

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise UnsupportedOption(f"unknown backend {self.backend!r}; choose from {', '.join(BACKENDS)}")
        if self.pooling is not None and self.pooling not in POOLINGS:
            raise UnsupportedOption(f"unknown pooling {self.pooling!r}; choose from {', '.join(POOLINGS)}")
        if self.threads < 1:
            raise InputError(f"threads is {self.threads}; use 1 or more")

    @property
    def name(self) -> str:
        """What requests call the model: the name of its folder."""
        return self.folder.absolute().name


def threads_each(models: int, threads: int | None) -> int:
    """Return the threads of each model's process: those asked for, or the usable cores shared among them."""
    return threads if threads is not None else max(1, usable_cores() // models)


def check_names(models: Sequence[ModelSettings]) -> None:
    """Refuse two models of one name, which requests could not tell apart."""
    names = [model.name for model in models]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"two folders are called {twice!r}, which is how requests name a model; rename one")


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
