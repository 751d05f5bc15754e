"""The first k layers of a pretrained model with a classifier on top; with all of them, the dense model."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from hashee.export.loading import load
from hashee.study.methods.static import Static
from hashee.study.students import depth_at
from hashee.training.backbone import Backbone
from hashee.training.method import register_method
from hashee.training.stages import WORK, Candidate, Choice, Fit

SHARES = (0.75, 0.5, 0.34, 0.25, 0.17)
"""Of the backbone's layers that are kept."""


@dataclass(frozen=True)
class FirstLayers(Static):
    """A shallower model: the upper layers are cut off before it is fine-tuned."""

    name: str = "first-layers"
    writes_text: ClassVar[bool] = True
    shares: tuple[float, ...] = SHARES

    def depths(self, backbone: Backbone) -> list[tuple[int, ...]]:
        """Return how many layers are kept, most first: of the encoder, and where it is cut too of the decoder."""
        return sorted({(depth_at(share, backbone.layers),) for share in self.shares}, reverse=True)

    def train(self, fit: Fit) -> Choice:
        """Fine-tune a model of each depth, with as many passes as other methods; with a teacher, in two stages.

        The second stage starts from the first layers of the dense model, and follows the best one.
        """
        taught = bool(fit.settings.distillation) and self is not DENSE
        dense = fit.dense() if taught else None
        teacher = best_dense(fit) if taught else None
        recipe = fit.recipe if taught else replace(fit.recipe, epochs=2 * fit.recipe.epochs)
        candidates = []
        for depth in self.depths(fit.backbone):
            name = "+".join(map(str, depth))
            start = fit.backbone if dense is None else dense.backbone
            packed = fit.backbone.packed(start.load(fit.settings.seed, *depth))
            folder = fit.folder / WORK / f"{self.name}-{name}"
            lesson = fit.lesson(teacher, first_only=bool(packed.hashed_encoder.reads_first_row))
            job = replace(fit.job(f"first {name} layers", packed, lesson), recipe=recipe)
            record = fit.train_into(folder, job, lesson.depends)
            passes = fit.passes_after(dense) if taught else recipe.epochs
            candidates.append(Candidate(f"{name} layers", folder, packed.exit_table, record, 0.0, passes))
        return Choice(fit, candidates, dense=dense)


def best_dense(fit: Fit) -> Any:
    """Return, as a packed model, the better on dev of the dense model that others start from and of the dense baseline.

    It teaches every method that has a teacher. The baseline has as many passes as every method has in all, and is
    trained once for all methods of a run's folder.
    """
    start, baseline = fit.dense(), DENSE.train(fit).best
    if start.record is None or start.record.dev["score"] >= baseline.score:
        return start.packed()
    return load(baseline.folder)


DENSE = FirstLayers("dense", (1.0,))
"""The dense baseline: all layers, and as many passes as the other methods."""
register_method(FirstLayers())
register_method(DENSE)
