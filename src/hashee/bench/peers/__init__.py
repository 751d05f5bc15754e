"""The peers: what a user could run instead, one entry each. Adding one is adding a file and a registration here.

A peer names its functions as `module:function` and they are imported in the peer's own process, so a package that is
missing here stops nobody else.
"""

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hashee.bench.batches import ARRIVAL, SORTED, Padded
from hashee.errors import InputError

Outputs = npt.NDArray[np.float32]

FULL, HALF, EXITS = "full", "half", "exits"
"""Depths: the whole model; half of it; what a model with exits keeps (`EXIT_LAYERS`, as in the paper)."""
EXIT_LAYERS = 6
REFERENCE = "transformers"
"""What `ratio` is relative to: full depth, length-sorted, SDPA."""
TRAINING_REFERENCE = "transformers training"


class Run(Protocol):
    """Answers one padded batch: a row of float32 outputs for each text."""

    def __call__(self, batch: Padded) -> Outputs: ...


@dataclass(frozen=True)
class Peer:
    """One way to run a model."""

    name: str
    load: str
    """`module:function` that takes a Job and the options and returns a Run."""
    options: dict[str, Any] = field(default_factory=dict)
    depth: str = FULL
    order: str = SORTED
    dtype: str = "float32"
    cost: str = "padded"
    """How its multiply-accumulates are counted: a name in `hashee.bench.cost.COSTS`."""
    answers: str | None = "dense"
    """Peers of one depth with the same word here must give equal outputs; None: comparable with nobody."""
    prepare: str | None = None
    """`module:function` that makes shared files from a Job, in a process of its own before any clock runs."""
    requires: tuple[str, ...] = ()
    """Packages that must be there."""
    install: str = ""
    """What to install if they are not."""
    models: tuple[str, ...] | None = None
    """Models to which it applies; None: all."""
    training: bool = False
    needs_torch: bool = True
    """Whether the process imports torch; if not, hashee's own imports of it are kept out as well."""
    load_limit: float = 300.0
    """Seconds that loading and warming up may take each."""

    def layers(self, full_depth: int) -> int:
        """Return how many layers run of a model of this depth."""
        return {FULL: full_depth, HALF: max(1, full_depth // 2), EXITS: min(EXIT_LAYERS, full_depth)}[self.depth]

    def missing(self) -> str | None:
        """Say which package is missing and what to install, or return None."""
        for package in self.requires:
            if importlib.util.find_spec(package) is None:
                return f"package {package} is not installed: pip install {self.install or package}"
        return None


PEERS: dict[str, Peer] = {}


def register(*peers: Peer) -> None:
    """Add peers to the benchmark; a name stands for one peer only."""
    for peer in peers:
        if PEERS.get(peer.name, peer) != peer:
            raise InputError(f"there is already another peer named {peer.name!r}; choose another name")
        PEERS[peer.name] = peer


def select(model: str, training: bool, names: Sequence[str] = ()) -> list[Peer]:
    """Return the peers that apply to a model, or those among them that were asked for by name."""
    able = [
        peer for peer in PEERS.values() if peer.training == training and (peer.models is None or model in peer.models)
    ]
    unknown = set(names) - {peer.name for peer in able}
    if unknown:
        known = ", ".join(repr(peer.name) for peer in able)
        raise InputError(f"no peer {sorted(unknown)[0]!r} for {model}; there are {known}")
    return [peer for peer in able if not names or peer.name in names]


def function(path: str) -> Callable[..., Any]:
    """Import what `module:function` names."""
    module, _, name = path.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found


_TRANSFORMERS = "hashee.bench.peers.transformers_peers"
_ONNXRUNTIME = "hashee.bench.peers.onnxruntime_peers"
_OPENVINO = "hashee.bench.peers.openvino_peers"
_HASHEE = "hashee.bench.peers.hashee_peers"

# The first of those that must answer alike is the one that the others are compared with.
register(
    Peer(REFERENCE, f"{_TRANSFORMERS}:load"),
    Peer("transformers arrival order", f"{_TRANSFORMERS}:load", order=ARRIVAL),
    Peer("transformers compile", f"{_TRANSFORMERS}:load", {"compiled": True}, load_limit=60.0),
    Peer("transformers half depth", f"{_TRANSFORMERS}:load", depth=HALF),
)
for _depth, _suffix in ((FULL, ""), (HALF, " half depth")):
    _onnx: dict[str, Any] = {
        "depth": _depth,
        "needs_torch": False,
        "requires": ("onnxruntime", "onnx", "onnxscript"),
        "install": "onnxruntime onnx onnxscript",
    }
    _openvino: dict[str, Any] = {
        "depth": _depth,
        "needs_torch": False,
        "requires": ("openvino", "onnx", "onnxscript"),
        "install": "openvino onnx onnxscript",
    }
    _int8: dict[str, Any] = {"dtype": "int8"}
    register(
        Peer(f"onnxruntime{_suffix}", f"{_ONNXRUNTIME}:load", prepare=f"{_ONNXRUNTIME}:export", **_onnx),
        Peer(
            f"onnxruntime int8{_suffix}",
            f"{_ONNXRUNTIME}:load",
            {"int8": True},
            prepare=f"{_ONNXRUNTIME}:export_int8",
            **_onnx | _int8,
        ),
        Peer(f"openvino{_suffix}", f"{_OPENVINO}:load", prepare=f"{_ONNXRUNTIME}:export", **_openvino),
        Peer(
            f"openvino int8{_suffix}",
            f"{_OPENVINO}:load",
            {"int8": True},
            prepare=f"{_OPENVINO}:export_int8",
            **_openvino | _int8 | {"requires": (*_openvino["requires"], "nncf"), "install": "openvino nncf onnxscript"},
        ),
    )
register(
    Peer(
        "sentence-transformers onnx",
        "hashee.bench.peers.sentence_transformers_peers:load",
        prepare="hashee.bench.peers.sentence_transformers_peers:export",
        answers=None,  # embeddings, not logits
        requires=("sentence_transformers", "optimum", "onnxruntime"),
        install='"sentence-transformers[onnx]"',
        models=("minilm",),
    ),
    Peer("hashee full depth", f"{_HASHEE}:load", {"exits": False}, cost="packed full depth"),
    Peer("hashee", f"{_HASHEE}:load", depth=EXITS, cost="packed", answers="exits"),
    Peer("hashee arrival order", f"{_HASHEE}:load", depth=EXITS, order=ARRIVAL, cost="packed", answers="exits"),
    Peer("hashee int8", f"{_HASHEE}:load", {"int8": True}, depth=EXITS, dtype="int8", cost="packed", answers="exits"),
    Peer(
        "hashee onnx",
        f"{_HASHEE}:load_onnx",
        depth=EXITS,
        cost="packed",
        answers="exits",
        prepare=f"{_HASHEE}:export",
        requires=("onnxruntime", "onnx"),
        install='"hashee[onnx]"',
        needs_torch=False,
    ),
    Peer(
        "hashee openvino",
        f"{_HASHEE}:load_openvino",
        depth=EXITS,
        cost="packed",
        answers="exits",
        prepare=f"{_HASHEE}:export",
        # The export is checked in ONNX Runtime before it is put in place.
        requires=("openvino", "onnxruntime", "onnx"),
        install='"hashee[onnx,openvino]"',
        needs_torch=False,
    ),
    Peer("authors", "hashee.bench.peers.authors:load", depth=EXITS, cost="authors", answers="exits"),
    Peer(
        TRAINING_REFERENCE,
        f"{_TRANSFORMERS}:load_training",
        depth=EXITS,
        order=ARRIVAL,
        cost="padded training",
        answers=None,
        training=True,
    ),
    Peer(
        "hashee training",
        f"{_HASHEE}:load_training",
        depth=EXITS,
        order=ARRIVAL,
        cost="packed training",
        answers=None,
        training=True,
    ),
)
