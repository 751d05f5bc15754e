"""Depth and exit table solved together: layers that are cut off pay for tokens that stay longer in those that are left."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hashee.data import Task
from hashee.study.methods.first_layers import best_dense
from hashee.study.methods.tables import COSTS, HashTable, for_each_speedup
from hashee.study.refusals import refuse_writing
from hashee.training.hash_exits import truncation_speedups
from hashee.training.method import register_method
from hashee.training.settings import TAUGHT
from hashee.training.stages import WORK, Candidate, Choice, Fit

DEEPER = 2.0
"""Times as many layers as would reach a speed-up without exits."""


def depth_for(speedup: float, truncated: Mapping[int, float]) -> int:
    """Return how many of a backbone's first layers are kept for an executed speed-up.

    truncated: how many times cheaper the model is at each depth, without exits.
    """
    layers = max(truncated)
    depth = min(layers, math.ceil(DEEPER * layers / speedup))
    # A head that reads one state can make so few layers cheaper than asked even if no token exits.
    return next((each for each in range(depth, layers) if truncated[each] < speedup), layers)


@dataclass(frozen=True)
class HashDepth(HashTable):
    """Tokens exit from the first layers by a table by importance, and the best dense model teaches."""

    name: str = "hash-depth"
    hash: str = "importance"
    speedups: tuple[float, ...] = COSTS
    min_exit: int = 0

    def refusal(self, task: Task) -> str | None:
        """Refuse models that write text, whose decoders cost the same at any depth of the encoder."""
        return refuse_writing(self.name, task)

    def train(self, fit: Fit) -> Choice:
        """Fine-tune a dense model of each depth; from it, a model with a table, which follows the dense model."""
        taught = fit.with_settings(distill=fit.settings.distill or TAUGHT)
        dense, teacher = fit.dense(), best_dense(fit)
        fits, truncated = {fit.backbone.layers: taught}, truncation_speedups(fit, dense)

        def at_cost(speedup: float) -> Candidate:
            depth = depth_for(speedup, truncated)
            counted = depth in fits
            fits.setdefault(depth, taught.at_depth(depth))
            found, seconds = self.at_depth(taught, fits[depth], speedup, teacher)
            return found if counted else replace(found, start_seconds=seconds)

        return Choice(fit, for_each_speedup(fit, self.speedups, at_cost), dense=dense)

    def at_depth(self, fit: Fit, shallow: Fit, speedup: float, teacher: Any) -> tuple[Candidate, float]:
        """Train a model whose table is solved for a speed-up over the whole backbone.

        fit: of all layers; shallow: of those that are kept. Returns also the seconds that their dense model took.
        """
        folder = fit.folder / WORK / f"{self.name}-{speedup:g}x"
        own = shallow.with_settings(speedup=speedup, min_exit=self.min_exit, hash=self.hash, table=None)
        dense = own.dense()
        made = own.with_table(self.hash, dense, folder)
        # What the teacher says is the same at all depths, so the fit of all layers keeps it.
        lesson = fit.lesson(teacher, first_only=bool(made.model.hashed_encoder.reads_first_row))
        lesson = replace(lesson, depends=made.depends | lesson.depends)
        title = f"{self.name} {speedup:g}x, {made.table.num_layers} layers"
        record = fit.train_into(folder, fit.job(title, made.model, lesson), lesson.depends)
        found = Candidate(f"{speedup:g}x", folder, made.table, record, made.seconds, fit.passes_after(dense))
        return found, 0.0 if dense.record is None else dense.record.seconds


register_method(HashDepth())
