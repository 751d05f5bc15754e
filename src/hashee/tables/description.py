"""An exit table as a few lines of plain text."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hashee.tables.vocabulary import special_ids

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_EXAMPLES = 6
_UNKNOWN = "-"


def layer_table(
    exit_layers: NDArray[np.int64],
    num_layers: int,
    occurrences: Sequence[int] | None,
    tokenizer: "PreTrainedTokenizerBase | None",
) -> str:
    """Return one line per layer: token types, occurrences, share of occurrences, and examples with a tokenizer.

    exit_layers: (vocab,). occurrences: (num_layers + 1,).
    """
    types = np.bincount(exit_layers, minlength=num_layers + 1)
    total = sum(occurrences) if occurrences else 0
    rows = [("layer", "token types", "occurrences", "share", "examples" if tokenizer is not None else "")]
    # Layer 0 is an option that most tables do not take.
    for layer in range(0 if types[0] else 1, num_layers + 1):
        seen = f"{occurrences[layer]:,}" if occurrences else _UNKNOWN
        share = f"{occurrences[layer] / total:.1%}" if occurrences and total else _UNKNOWN
        examples = "" if tokenizer is None else _examples(exit_layers, layer, tokenizer)
        rows.append((str(layer), f"{types[layer]:,}", seen, share, examples))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join(
        "  ".join([*(cell.rjust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in rows
    )


def _examples(exit_layers: NDArray[np.int64], layer: int, tokenizer: "PreTrainedTokenizerBase") -> str:
    """Return a few tokens of the layer, evenly spaced by id so that they are not all punctuation."""
    ids = np.setdiff1d(np.flatnonzero(exit_layers == layer), np.array(special_ids(tokenizer), dtype=np.int64))
    ids = ids[ids < len(tokenizer)]
    picked = ids[np.unique((np.arange(_EXAMPLES) + 0.5) * len(ids) // _EXAMPLES).astype(np.int64)] if len(ids) else ids
    return " ".join(token for token in tokenizer.convert_ids_to_tokens(picked.tolist()) if token)
