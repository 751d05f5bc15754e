"""What models predict for the examples of a split, and how fast."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from hashee.cost.rounds import alternate
from hashee.data.batching import Batching, make_batches
from hashee.data.task import Examples
from hashee.data.task_types import type_of
from hashee.data.texts import Text
from hashee.data.tokenized import Tokenized
from hashee.errors import HasheeError
from hashee.evaluation.opening import Opened

Array = NDArray[Any]


@dataclass(frozen=True)
class Timing:
    """How long a model took for the same texts, round by round."""

    texts: int
    seconds: tuple[float, ...]

    @property
    def texts_per_second(self) -> float:
        """Texts / median seconds of a round."""
        return self.texts / max(median(self.seconds), 1e-9)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"texts": self.texts, "seconds": list(self.seconds), "texts_per_second": self.texts_per_second}


def predict_logits(opened: Opened, examples: Examples, progress: bool = False) -> list[Array]:
    """Return the logits for each example, the outputs in the order of the task's labels.

    (labels,) for a text; for tags (words, labels), with NaN for words that were cut off.
    """
    if type_of(opened.task).tags_words:
        logits = _for_words(opened, opened.encoder(examples))
    else:
        rows = opened.predict(cast(Sequence[Text], examples.texts), progress)
        logits = [_finite(opened, row, index) for index, row in enumerate(rows)]
    return [row[..., opened.order] for row in logits]


def _for_words(opened: Opened, encoded: Tokenized) -> list[Array]:
    """Run tokenized words in batches of like cost and pick the logits of each word's first token."""
    exit_layers = None if opened.table is None else opened.table.exit_layers.numpy()
    found: list[Array] = [np.empty(0)] * len(encoded)
    for indices in make_batches([row.tolist() for row in encoded.ids], exit_layers, Batching()):
        inputs = {name: tensor.numpy() for name, tensor in encoded.inputs(indices).items()}
        for index, logits in zip(indices, opened.run(inputs), strict=True):
            # Rows of padding may hold anything.
            own = _finite(opened, logits[: len(encoded.ids[index])], index)
            found[index] = encoded.word_logits(index, own)
    return found


def _finite(opened: Opened, logits: Array, index: int) -> Array:
    if not np.isfinite(logits).all():
        raise HasheeError(
            f"the model in {opened.source} predicts {logits[~np.isfinite(logits)][0]} for example {index}; its weights "
            f"are damaged or overflow, so fit it again"
        )
    return logits


def time_rounds(models: Sequence[Opened], examples: Examples, rounds: int, at_most: int) -> list[Timing]:
    """Time models on the same texts, tokenizing included, in rounds that alternate between them."""
    timed = Examples([examples.texts[index] for index in spread(range(len(examples)), at_most)], None)
    seconds = alternate([partial(predict_logits, model, timed) for model in models], rounds)
    return [Timing(len(timed), each) for each in seconds]


def spread(indices: Sequence[int], count: int) -> list[int]:
    """Return at most `count` of some indices, evenly spaced."""
    picked = np.unique(np.linspace(0, len(indices) - 1, min(count, len(indices))).round().astype(int))
    return [indices[number] for number in picked]
