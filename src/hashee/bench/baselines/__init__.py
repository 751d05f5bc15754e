"""What is clocked: hashee's engines and the baselines that a user could run instead, one entry each.

Adding one is adding a file and a registration here. An entry names its functions as `module:function`, and they are
imported in the process that runs them, so a missing package stops no other.
"""

import importlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence
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


class RunBatch(Protocol):
    """Runs one padded batch: a row of float32 outputs for each text."""

    def __call__(self, batch: Padded) -> Outputs: ...


@dataclass(frozen=True)
class Baseline:
    """One way to run a model: a baseline, or one of hashee's own engines, which are clocked alike."""

    name: str
    load: str
    """`module:function` that takes a ClockJob and the options and returns a RunBatch."""
    options: dict[str, Any] = field(default_factory=dict)
    depth: str = FULL
    order: str = SORTED
    dtype: str = "float32"
    cost: str = "padded"
    """How its multiply-accumulates are counted: a name in `hashee.bench.cost.COSTS`."""
    output_group: str | None = "dense"
    """Baselines of one group and depth must give equal outputs; None: they are compared with no other's."""
    prepare: str | None = None
    """`module:function` that makes shared files from a ClockJob, in a process of its own before any clock runs."""
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


BASELINES: dict[str, Baseline] = {}


def register(*baselines: Baseline) -> None:
    """Add baselines to the benchmark; a name stands for one baseline only."""
    for baseline in baselines:
        if BASELINES.get(baseline.name, baseline) != baseline:
            raise InputError(f"there is already another baseline named {baseline.name!r}; choose another name")
        BASELINES[baseline.name] = baseline


def select(model: str, training: bool, names: Sequence[str] = ()) -> list[Baseline]:
    """Return the baselines that apply to a model, or those among them that were asked for by name."""
    able = [
        baseline
        for baseline in BASELINES.values()
        if baseline.training == training and (baseline.models is None or model in baseline.models)
    ]
    unknown = set(names) - {baseline.name for baseline in able}
    if unknown:
        known = ", ".join(repr(baseline.name) for baseline in able)
        raise InputError(f"no baseline {sorted(unknown)[0]!r} for {model}; there are {known}")
    return [baseline for baseline in able if not names or baseline.name in names]


def function(path: str) -> Callable[..., Any]:
    """Import what `module:function` names."""
    module, _, name = path.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found


_TRANSFORMERS = "hashee.bench.baselines.transformers_baselines"
_ONNXRUNTIME = "hashee.bench.baselines.onnxruntime_baselines"
_OPENVINO = "hashee.bench.baselines.openvino_baselines"
_HASHEE = "hashee.bench.baselines.hashee_engines"


def _exported(runtime: str, requires: tuple[str, ...], install: str) -> Iterator[Baseline]:
    """Yield hashee's exported model in a runtime, in float32 and in int8."""
    for int8 in (False, True):
        yield Baseline(
            f"hashee {runtime} int8" if int8 else f"hashee {runtime}",
            f"{_HASHEE}:load_{runtime}",
            {"int8": int8},
            depth=EXITS,
            dtype="int8" if int8 else "float32",
            cost="packed",
            output_group="exits",
            prepare=f"{_HASHEE}:export_int8" if int8 else f"{_HASHEE}:export",
            requires=requires,
            install=install,
            needs_torch=False,
        )


# The first of a group is the one that the others' outputs are compared with.
register(
    Baseline(REFERENCE, f"{_TRANSFORMERS}:load"),
    Baseline("transformers arrival order", f"{_TRANSFORMERS}:load", order=ARRIVAL),
    Baseline("transformers compile", f"{_TRANSFORMERS}:load", {"compiled": True}, load_limit=60.0),
    Baseline("transformers half depth", f"{_TRANSFORMERS}:load", depth=HALF),
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
        Baseline(f"onnxruntime{_suffix}", f"{_ONNXRUNTIME}:load", prepare=f"{_ONNXRUNTIME}:export", **_onnx),
        Baseline(
            f"onnxruntime int8{_suffix}",
            f"{_ONNXRUNTIME}:load",
            {"int8": True},
            prepare=f"{_ONNXRUNTIME}:export_int8",
            **_onnx | _int8,
        ),
        Baseline(f"openvino{_suffix}", f"{_OPENVINO}:load", prepare=f"{_ONNXRUNTIME}:export", **_openvino),
        Baseline(
            f"openvino int8{_suffix}",
            f"{_OPENVINO}:load",
            {"int8": True},
            prepare=f"{_OPENVINO}:export_int8",
            **_openvino | _int8 | {"requires": (*_openvino["requires"], "nncf"), "install": "openvino nncf onnxscript"},
        ),
    )
register(
    Baseline(
        "sentence-transformers onnx",
        "hashee.bench.baselines.sentence_transformers_baselines:load",
        prepare="hashee.bench.baselines.sentence_transformers_baselines:export",
        output_group=None,  # embeddings, not logits
        requires=("sentence_transformers", "optimum", "onnxruntime"),
        install='"sentence-transformers[onnx]"',
        models=("minilm",),
    ),
    Baseline("hashee full depth", f"{_HASHEE}:load", {"exits": False}, cost="packed full depth"),
    Baseline("hashee", f"{_HASHEE}:load", depth=EXITS, cost="packed", output_group="exits"),
    Baseline(
        "hashee arrival order", f"{_HASHEE}:load", depth=EXITS, order=ARRIVAL, cost="packed", output_group="exits"
    ),
    Baseline(
        "hashee int8", f"{_HASHEE}:load", {"int8": True}, depth=EXITS, dtype="int8", cost="packed", output_group="exits"
    ),
    *_exported("onnx", requires=("onnxruntime", "onnx"), install='"hashee[onnx]"'),
    # The export is checked in ONNX Runtime before it is put in place.
    *_exported("openvino", requires=("openvino", "onnxruntime", "onnx"), install='"hashee[onnx,openvino]"'),
    Baseline("authors", "hashee.bench.baselines.authors:load", depth=EXITS, cost="authors", output_group="exits"),
    Baseline(
        TRAINING_REFERENCE,
        f"{_TRANSFORMERS}:load_training",
        depth=EXITS,
        order=ARRIVAL,
        cost="padded training",
        output_group=None,
        training=True,
    ),
    Baseline(
        "hashee training",
        f"{_HASHEE}:load_training",
        depth=EXITS,
        order=ARRIVAL,
        cost="packed training",
        output_group=None,
        training=True,
    ),
)
