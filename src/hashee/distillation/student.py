"""Training a student to follow a dense model on texts without labels."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from hashee.data.output_types import OutputType
from hashee.distillation.agreement import Array, agreement
from hashee.distillation.corpus import Corpus
from hashee.distillation.objectives import EmbeddingDistillation, ScoreDistillation, StateDistillation
from hashee.distillation.settings import SpeedupSettings
from hashee.files import sha256_of_json
from hashee.hf.text_models import TextModel
from hashee.training.backbone import weights_fingerprint
from hashee.training.evaluation import logits_for
from hashee.training.objective import Objective
from hashee.training.outputs import Need
from hashee.training.processes import Processes
from hashee.training.stage import Stage, StageRecord, run_stage
from hashee.training.teacher import RunningTeacher, StoredLogits, Teacher, teacher_logits
from hashee.training.trainer import TrainingJob

WORK = "work"
"""Sub-folder of the output for files that are only needed until the model is finished."""
_MOST_STORED = 2 << 30
"""Bytes of a teacher's outputs that are kept in a file; with more it runs in every step."""


@dataclass(frozen=True)
class Lesson:
    """A dense model, the texts that it is followed on, and what it says of those held out."""

    teacher: TextModel
    runner: TextModel
    """The teacher on the packed engine, which gives the same answers sooner."""
    corpus: Corpus
    held_out: list[Array]
    """The teacher's outputs: (width,), (scores,) or (tokens, width) of each text."""
    fingerprint: str
    """Of the teacher's weights and the texts."""

    @classmethod
    def of(cls, teacher: TextModel, corpus: Corpus, processes: Processes) -> "Lesson":
        """Run a dense model on the held-out texts."""
        depends = {"weights": weights_fingerprint(teacher), "texts": corpus.fingerprint, "output": teacher.output}
        runner = teacher.at_full_depth()
        held_out = outputs_on_held_out(runner, corpus, processes)
        return cls(teacher, runner, corpus, held_out, sha256_of_json(depends))

    def agreement(self, student: TextModel, processes: Processes) -> dict[str, float]:
        """Return how close a student is to the dense model on the held-out texts."""
        return agreement(
            self.teacher.output,
            outputs_on_held_out(student, self.corpus, processes),
            self.held_out,
            self.corpus.held_out.groups,
        )


def outputs_on_held_out(model: TextModel, corpus: Corpus, processes: Processes) -> list[Array]:
    """Return the outputs of a model for each held-out text: (width,), (scores,) or (tokens, width)."""
    tokenized = corpus.held_out.tokenized
    found = logits_for(model, tokenized, processes)
    lengths = tokenized.lengths
    return [row[: lengths[index]] if row.ndim == 2 else row for index, row in enumerate(found)]


def distil(
    student: TextModel, lesson: Lesson, settings: SpeedupSettings, folder: Path, processes: Processes
) -> StageRecord:
    """Train a student and write the best on the held-out texts to a folder, unless it is there already."""
    train = lesson.corpus.train
    teacher, objective = _teaching(lesson, folder / WORK, processes)
    _without_dropout(student)
    job = TrainingJob(
        title="following the dense model",
        model=student,
        saved=student,
        tokenizer=student.tokenizer,
        train=train.tokenized,
        objective=objective,
        recipe=settings.recipe,
        seed=settings.seed,
        dev_metrics=_metrics(lesson, processes),
        teacher=teacher,
        groups=train.groups,
    )
    depends: dict[str, Any] = {
        "lesson": lesson.fingerprint,
        "start": weights_fingerprint(student),
        "table": student.exit_table.fingerprint if student.has_exits else None,
        "recipe": asdict(settings.recipe),
        "bf16": settings.bf16,
        "tokens": settings.tokens,
        "seed": settings.seed,
    }
    fit = settings.to_fit(folder, len(train.texts))
    return run_stage(Stage(folder, depends), job, fit, processes)


def _metrics(lesson: Lesson, processes: Processes) -> Callable[[Any], dict[str, float]]:
    return lambda model: lesson.agreement(model, processes)


def _teaching(lesson: Lesson, work: Path, processes: Processes) -> tuple[Teacher, Objective]:
    """Return the dense model as a teacher, and what its student minimises."""
    teacher, train = lesson.runner, lesson.corpus.train
    if teacher.output is OutputType.STATES:
        return RunningTeacher(teacher, Need.NOTHING), StateDistillation()
    embeds = teacher.output is OutputType.EMBEDDING
    if embeds and 4 * len(train.texts) * len(lesson.held_out[0]) > _MOST_STORED:
        return RunningTeacher(teacher, Need.NOTHING), EmbeddingDistillation(lengths=not teacher.is_normalized)
    found = teacher_logits(work / "teacher.safetensors", lesson.fingerprint, teacher, train.tokenized, processes)
    stored = StoredLogits(found, None)
    if embeds:
        return stored, EmbeddingDistillation(lengths=not teacher.is_normalized)
    groups = train.groups
    repeats = groups is not None and len(np.unique(groups)) < len(groups)
    spread = max(float(np.std(np.stack(found))), 1e-6)
    return stored, ScoreDistillation(spread, torch.from_numpy(groups) if groups is not None and repeats else None)


def _without_dropout(model: nn.Module) -> None:
    """Switch dropout off: the teacher's outputs are no labels that could be learnt by heart."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
