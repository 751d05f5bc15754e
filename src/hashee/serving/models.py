"""Which models a server runs: folders that were named, a dense one to compare with, those of a trade-off."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hashee.errors import InputError
from hashee.evaluation.points import DENSE, STATIC, read_points
from hashee.serving.settings import ModelSettings, threads_each

POINTS = "tradeoff.json"


def settings_of(
    folders: Sequence[Path], pattern: ModelSettings, threads: int | None, dense: Path | None, tradeoff: Path | None
) -> list[ModelSettings]:
    """Return how each model is opened. pattern: what they share. threads: of each; None shares the cores."""
    models = [replace(pattern, folder=folder) for folder in folders]
    if tradeoff is not None:
        models += _models_of_tradeoff(tradeoff, pattern)
    if dense is not None:
        models.append(replace(pattern, folder=dense, backend="torch", dense=True))
    for model in models:
        if not model.folder.is_dir():
            raise InputError(f"{model.folder} is no folder; name that of a model")
    each = threads_each(max(1, len(models)), threads)
    return [replace(model, threads=each) for model in models]


def _models_of_tradeoff(folder: Path, pattern: ModelSettings) -> list[ModelSettings]:
    """Return the models with exits of a trade-off, the least sped up first."""
    points = [
        point
        for point in read_points(folder / POINTS)
        if point.hash not in (DENSE, STATIC) and point.folder is not None and point.speedup is not None
    ]
    found = []
    for point in sorted(points, key=lambda point: point.speedup or 0.0):
        # The folder may have been moved as a whole since it was written.
        written = Path(point.folder or "")
        places = [written, *(folder / Path(*written.parts[start:]) for start in range(1, len(written.parts)))]
        place = next((each for each in places if each.is_dir()), None)
        if place is None:
            raise InputError(f"{folder / POINTS} names {written}, which is not there; copy the whole folder")
        found.append(replace(pattern, folder=place, speedup=point.speedup))
    if not found:
        raise InputError(f"{folder / POINTS} names no model with exits; write it with hashee tradeoff")
    return found
