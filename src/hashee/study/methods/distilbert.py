"""DistilBERT (Sanh et al., EMC2 workshop at NeurIPS 2019): a student of half the depth follows the teacher's
soft predictions and last hidden states.

The paper distills on unlabelled text, where masked language modelling is the third part of the loss. Here the error on
the labels takes its place, and the teacher is the fine-tuned dense model; texts without labels are followed too, if
there are any. Released DistilBERT checkpoints are backbones like any other: run `dense` on them.
"""

from hashee.data.task_types import TaskType, type_of
from hashee.families.layers import spread_layers
from hashee.study.methods.first_layers import best_dense
from hashee.study.methods.static import Static
from hashee.study.students import depth_at, student_of
from hashee.training.lesson import Lesson
from hashee.training.method import register_method
from hashee.training.objective import HiddenDistillation, LogitDistillation, TargetLoss, WeightedSum
from hashee.training.stages import WORK, Candidate, Choice, Dense, Fit

SHARES = (0.5, 0.34)
"""Of the teacher's layers: half of them as in the paper, and a third."""
TEMPERATURE = 2.0
SOFT, LABELS, COSINE = 5.0, 2.0, 1.0
"""Weights of the paper's loss, which are divided by their sum."""


def distillation_loss(task_type: TaskType) -> WeightedSum:
    """Return soft targets, labels and the cosine of the last hidden states of all tokens, weighted as in the paper."""
    total = SOFT + LABELS + COSINE
    return WeightedSum(
        (
            (SOFT / total, LogitDistillation(task_type, TEMPERATURE)),
            (LABELS / total, TargetLoss(task_type)),
            (COSINE / total, HiddenDistillation(distance="cosine")),
        )
    )


class DistilBert(Static):
    """A student made of layers of its teacher, evenly spaced from the first to the last."""

    name = "distilbert"

    def train(self, fit: Fit) -> Choice:
        """Fine-tune the dense model; then distill it into a student of each depth."""
        dense = fit.dense()
        depths = sorted({depth_at(share, dense.backbone.layers) for share in SHARES}, reverse=True)
        return Choice(fit, [self._student(fit, dense, depth) for depth in depths], dense=dense)

    def _student(self, fit: Fit, dense: Dense, depth: int) -> Candidate:
        chosen = spread_layers(depth, dense.backbone.layers)
        student = fit.backbone.packed(student_of(dense.backbone, chosen, fit.settings.seed))
        objective = distillation_loss(type_of(fit.data.task))
        teacher, fingerprint = fit.teacher(best_dense(fit), objective)
        folder = fit.folder / WORK / f"{self.name}-{depth}"
        lesson = Lesson(objective, fit.taught, teacher, {"teacher": fingerprint, "objective": repr(objective)})
        record = fit.train_into(folder, fit.job(f"{self.name} {depth} layers", student, lesson), lesson.depends)
        passes = fit.passes_after(dense)
        return Candidate(f"{depth} layers", folder, student.exit_table, record, 0.0, passes)


register_method(DistilBert())
