"""How many texts a core scores in a second, measured as a bulk job runs them: tokenizing and decoding included."""

import time
from collections.abc import Sequence
from statistics import median

from hashee.bulk.scoring import open_scoring_model
from hashee.bulk.settings import ModelOptions
from hashee.data.texts import Text

_ROUNDS = 3
_TOKENS = 2048


def seconds_of(folders: Sequence[str], texts: Sequence[Text]) -> list[float]:
    """Return the median seconds that each model takes for some texts on one thread, in interleaved rounds."""
    models = [open_scoring_model(ModelOptions(folder), threads=1) for folder in folders]
    taken: list[list[float]] = [[] for _ in models]
    for number in range(_ROUNDS + 1):
        for model, times in zip(models, taken, strict=True):
            start = time.perf_counter()
            model.score(texts, _TOKENS)
            if number:  # the first round warms up
                times.append(time.perf_counter() - start)
    return [median(times) for times in taken]
