"""TinyBERT (Jiao et al., Findings of EMNLP 2020): a student follows its teacher's embeddings, hidden states and
unnormalised attention scores, layer by layer, and then its predictions.

The paper's general distillation on a large corpus is left out; in its place the student starts from the teacher's
layers that it follows. It is as wide as the teacher (TinyBERT-6), so states are compared without a projection.
"""

from dataclasses import replace
from pathlib import Path

from hashee.data.task_types import type_of
from hashee.study.attention_scores import AttentionDistillation, ScoredModel
from hashee.study.methods.first_layers import best_dense
from hashee.study.methods.static import Static
from hashee.study.students import depth_at, student_of
from hashee.training.backbone import open_backbone, weights_fingerprint
from hashee.training.lesson import Lesson
from hashee.training.method import register_method
from hashee.training.objective import HiddenDistillation, LogitDistillation, WeightedSum, even_layers
from hashee.training.stage import StageRecord
from hashee.training.stages import WORK, Candidate, Choice, Dense, Fit
from hashee.training.teacher import RunningTeacher

SHARE = 0.5
"""Of the teacher's layers."""
TEMPERATURE = 1.0


def layers_loss(pairs: tuple[tuple[int, int], ...]) -> WeightedSum:
    """Return the paper's sum over layers: embeddings, and hidden states and attention scores of each pair."""
    states = ((0, 0), *pairs)
    return WeightedSum(((len(states), HiddenDistillation(states)), (len(pairs), AttentionDistillation(pairs))))


class TinyBert(Static):
    """A student that is distilled in two stages of half the passes each."""

    name = "tinybert"

    def train(self, fit: Fit) -> Choice:
        """Fine-tune the dense model; distill its layers into a student of half the depth, then its predictions."""
        dense = fit.dense()
        stage = fit.with_recipe(replace(fit.recipe, epochs=fit.recipe.epochs / 2))
        depth = depth_at(SHARE, dense.backbone.layers)
        folder = fit.folder / WORK / f"{self.name}-{depth}"
        layers = self._follow_layers(stage, dense, depth, folder / "layers")
        start = open_backbone(str(folder / "layers"), fit.data.task, None)
        student = start.packed(start.load(fit.settings.seed))
        objective = LogitDistillation(type_of(fit.data.task), TEMPERATURE)
        teacher, fingerprint = fit.teacher(best_dense(fit), objective)
        lesson = Lesson(objective, fit.taught, teacher, {"teacher": fingerprint, "objective": repr(objective)})
        job = stage.job(f"{self.name} predictions", student, lesson)
        record = stage.train_into(folder / "predictions", job, lesson.depends)
        record = replace(record, seconds=layers.seconds + record.seconds)
        passes = fit.passes_after(dense)
        candidate = Candidate(f"{depth} layers", folder / "predictions", student.exit_table, record, 0.0, passes)
        return Choice(fit, [candidate], dense=dense)

    def _follow_layers(self, fit: Fit, dense: Dense, depth: int, folder: Path) -> StageRecord:
        """Run the first stage; the head, which is the teacher's, shows on dev how near the last states are."""
        pairs = even_layers(depth, dense.backbone.layers)
        student = student_of(dense.backbone, [layer for _, layer in pairs], fit.settings.seed)
        whole = dense.backbone.load(depth=dense.backbone.layers)
        objective = layers_loss(pairs)
        teacher = RunningTeacher(ScoredModel(whole).to(fit.processes.device), objective.needs)
        depends = {"teacher": weights_fingerprint(whole), "objective": repr(objective)}
        job = fit.job(f"{self.name} layers", ScoredModel(student), Lesson(objective, fit.taught, teacher, depends))
        return fit.train_into(folder, replace(job, saved=student), depends)


register_method(TinyBert())
