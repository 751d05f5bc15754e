"""The one check of what was loaded: all weights that a model needs are there and finite; transformers only reports."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hashee.engine.memory import release, unchanged_mappings
from hashee.errors import CheckpointError

_NAMED = 3
"""Missing weights that a message names."""


@dataclass(frozen=True)
class Required:
    """Which weights a checkpoint must have, and what is said of those that it lacks."""

    new_head: bool = False
    """Whether head and pooler may be new."""
    other_sizes: bool = False
    """Whether weights may be new because the caller asked for another size than the checkpoint's."""
    what: str = "weights"
    remedy: str = "save the model again"


def check_weights(model: Any, source: Any, info: Mapping[str, Any], required: Required) -> None:
    """Raise if a loaded model lacks weights or holds values that are not finite.

    info: what `from_pretrained` gives with `output_loading_info=True`.
    """
    missing, resized = set(info["missing_keys"]), {row[0] for row in info.get("mismatched_keys", ())}
    lost = missing if required.other_sizes else missing | resized
    if required.new_head:
        lost = lost - _new_weights(model, missing, resized)
    if lost:
        names = ", ".join(sorted(lost)[:_NAMED]) + (" ..." if len(lost) > _NAMED else "")
        raise CheckpointError(f"{source} lacks {len(lost)} {required.what}, such as {names}; {required.remedy}")
    check_finite(model, source)


def _new_weights(model: Any, missing: set[str], resized: set[str]) -> set[str]:
    """Return the weights that a checkpoint with another head need not have: those of new heads and poolers."""
    # The pooler counts as part of a head.
    base = f"{model.base_model_prefix}." if hasattr(model, model.base_model_prefix) else ""
    tied = set(getattr(model, "all_tied_weights_keys", None) or {})
    parts: dict[str, set[str]] = {}
    for name in set(model.state_dict()) - tied:
        inside = name.removeprefix(base) if name.startswith(base) else None
        if inside is None or ".pooler." in f".{inside}":
            parts.setdefault("pooler" if inside else name.partition(".")[0], set()).add(name)
    # A part is new as a whole, or was made for other labels; half of one is damage.
    return tied.union(*(names for names in parts.values() if names <= missing or names & resized))


def check_finite(model: Any, source: Any) -> None:
    """Raise if any weight is NaN or infinite."""
    mapped = unchanged_mappings()
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point() and parameter.numel() and not parameter.is_meta:
            low, high = parameter.detach().aminmax()
            if not bool(low.isfinite() & high.isfinite()):
                raise CheckpointError(f"weight {name} of {source} holds NaN or infinite values; it cannot be used")
            release(parameter.detach(), mapped)  # most rows of the embeddings are never read again
