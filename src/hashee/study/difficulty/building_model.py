"""Model-defined difficulty: train a model with a classifier after every layer, and label texts with who is right."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hashee.data import Examples, TaskData
from hashee.data.splits import part_of, shuffled
from hashee.data.task_types import type_of
from hashee.errors import InputError
from hashee.study.data import Limits, study_data
from hashee.study.difficulty.datasets import FEWEST, DifficultySet, Level, checked
from hashee.study.difficulty.token_exits import train_token_exits, word_logits_by_layer
from hashee.study.methods import METHODS
from hashee.study.methods.early_exit import EarlyExit, outputs_by_layer
from hashee.training.backbone import open_backbone
from hashee.training.processes import current_processes
from hashee.training.settings import FitSettings
from hashee.training.stages import Fit

TEST_SHARE = 1842 / 9842
"""The paper's: 8,000 rows to train on, 1,842 to test."""
FEWEST_LAYERS = 2


@dataclass(frozen=True)
class ModelSettings:
    """What is trained, and whose texts are labelled."""

    name: str
    task: str | TaskData
    backbone: str = "minilm"
    seed: int = 0
    limits: Limits = (None, None, None)
    """Examples of train, dev and test, drawn with seed 0; None for all."""
    method: str = "pabee"
    """How exits of texts are trained; those of words are trained together with the encoder."""
    label_splits: Sequence[str] = ("dev",)
    """Splits whose texts are labelled; none of them is trained on, but dev chooses the best checkpoint."""
    test_share: float = TEST_SHARE
    fit: dict[str, Any] = field(default_factory=dict)
    """Of `FitSettings`, such as epochs."""

    def __post_init__(self) -> None:
        for split in self.label_splits:
            if split not in ("dev", "test"):
                raise InputError(f"difficulties are labelled on texts of dev or test, not of {split!r}")


def build_by_model(level: Level, settings: ModelSettings, work: Path) -> DifficultySet:
    """Train a multi-exit model and label the texts, or the words, of other splits. work: folder for the model."""
    fit = multi_exit_fit(level, settings, work)
    data = fit.data
    splits = {"dev": data.dev, "test": data.test}
    parts = []
    for split in settings.label_splits:
        examples = splits[split]
        if examples is None or examples.targets is None:
            raise InputError(f"{data.task.name} has no labelled {split} split; label others with --label-split")
        parts.append(examples)
    pool = Examples([text for part in parts for text in part.texts], [y for part in parts for y in part.targets or ()])
    if len(pool) < 2 * FEWEST:
        raise InputError(
            f"{data.task.name} has {len(pool)} texts to label, too few to split into train and test; "
            f"give at least {2 * FEWEST}"
        )
    folder = work / "multi-exit"
    labelled = _label_words(fit, folder, pool) if level == "token" else _label_texts(fit, settings.method, pool)
    train, test = divided(labelled, settings.test_share, settings.seed)
    about = {
        "task": data.task.name,
        "backbone": Path(settings.backbone).name,
        "layers": fit.backbone.depth,
        "method": "all layers together" if level == "token" else settings.method,
        "trained_on": len(data.train),
        "labelled": list(settings.label_splits),
        "left_out": len(pool) - len(labelled),
        "notes": list(data.notes),
        "seed": settings.seed,
    }
    return checked(DifficultySet(settings.name, level, train, test, about))


def multi_exit_fit(level: Level, settings: ModelSettings, work: Path) -> Fit:
    """Open what a multi-exit model is trained with, refusing tasks and backbones that have no such difficulty."""
    data = study_data(settings.task, settings.limits)
    task_type = type_of(data.task)
    if task_type.tags_words != (level == "token") or (level != "token" and not task_type.one_decision):
        needed = "a tag for each word" if level == "token" else "one class for each text"
        raise InputError(f"{level}-level difficulty needs a task with {needed}; {data.task.name} is {data.task.kind}")
    layers = open_backbone(settings.backbone, data.task, None).layers
    if layers < FEWEST_LAYERS:
        raise InputError(
            f"the backbone {Path(settings.backbone).name} has {layers} layer; texts are easy or difficult for some "
            f"layers among at least {FEWEST_LAYERS}, so name a deeper one"
        )
    own: dict[str, Any] = {
        "task": data,
        "output": work,
        "backbone": settings.backbone,
        "seed": settings.seed,
        "quiet": True,
    }
    return Fit(FitSettings(**(own | settings.fit)), data, current_processes())


def _label_texts(fit: Fit, method: str, pool: Examples) -> Examples:
    """Say of each text which layers predict its class."""
    trained = METHODS.get(method)
    if not isinstance(trained, EarlyExit):
        known = ", ".join(name for name, each in METHODS.items() if isinstance(each, EarlyExit))
        raise InputError(f"{method!r} trains no classifier after every layer; choose from {known}")
    candidate = trained.train(fit).best
    model = trained.open(candidate.folder).to(fit.processes.device)
    exits = outputs_by_layer(model, fit.encoder(pool), fit.processes)
    predicted = np.stack([each.logits.argmax(-1).numpy() for each in exits], axis=1)
    right = predicted == np.asarray(pool.targets)[:, None]
    return Examples(pool.texts, [tuple(map(int, row)) for row in right])


def _label_words(fit: Fit, folder: Path, pool: Examples) -> Examples:
    """Say of each word which layers predict its tag; texts with words that were truncated are left out."""
    model = train_token_exits(fit, folder)
    texts: list[Any] = []
    targets: list[Any] = []
    tags: Any = pool.targets
    for index, row in enumerate(word_logits_by_layer(fit, model, fit.encoder(pool))):
        logits = np.stack(row)
        if np.isnan(logits).any():
            continue
        right = (logits.argmax(-1) == np.asarray(tags[index])).T
        texts.append(pool.texts[index])
        targets.append(tuple(tuple(map(int, word)) for word in right))
    return Examples(texts, targets)


def divided(examples: Examples, test_share: float, seed: int) -> tuple[Examples, Examples]:
    """Return train and test, drawn with the seed, each in the order of the examples."""
    order = shuffled(len(examples), seed)
    size = round(len(examples) * test_share)
    return part_of(examples, sorted(order[size:])), part_of(examples, sorted(order[:size]))
