"""The first k layers of a pretrained model with a classifier on top; with all of them, the dense model."""

from dataclasses import dataclass, replace

from hashee.study.methods.static import Static
from hashee.study.students import depth_at
from hashee.training.method import Choice, register_method
from hashee.training.stages import WORK, Candidate, Fit

SHARES = (0.75, 0.5, 0.34, 0.25, 0.17)
"""Of the backbone's layers that are kept."""


@dataclass(frozen=True)
class FirstLayers(Static):
    """A shallower model: the upper layers are cut off before it is fine-tuned."""

    name: str = "first-layers"
    shares: tuple[float, ...] = SHARES

    def depths(self, layers: int) -> list[int]:
        """Return how many layers are kept, most first."""
        return sorted({depth_at(share, layers) for share in self.shares}, reverse=True)

    def train(self, fit: Fit) -> Choice:
        """Fine-tune a model of each depth from the backbone's weights, for as many passes as others in two stages."""
        recipe = replace(fit.recipe, epochs=2 * fit.recipe.epochs)
        candidates = []
        for depth in self.depths(fit.backbone.layers):
            packed = fit.backbone.packed(fit.backbone.load(fit.settings.seed, depth))
            folder = fit.folder / WORK / f"{self.name}-{depth}"
            record = fit.train_into(folder, replace(fit.job(f"first {depth} layers", packed), recipe=recipe))
            candidates.append(Candidate(f"{depth} layers", folder, packed.exit_table, record, 0.0, recipe.epochs))
        return Choice(fit, candidates)


register_method(FirstLayers())
register_method(FirstLayers("dense", (1.0,)))
