"""What a student without labels minimises: its distance from the dense model's embeddings, scores or states."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from hashee.errors import InputError
from hashee.hf.text_models import similarities
from hashee.training.outputs import Batch, Need, Outputs


@dataclass(frozen=True)
class EmbeddingDistillation:
    """One minus the cosine with the teacher's embedding, and the squared error of similarities within the batch."""

    similarity_weight: float = 1.0
    lengths: bool = False
    """Whether the lengths of embeddings matter too: the square of their relative difference is added."""

    @property
    def needs(self) -> Need:
        """The teacher's embeddings."""
        return Need.TEACHER

    def __call__(self, outputs: Outputs, batch: Batch, teacher_outputs: Outputs | None = None) -> Tensor:
        """Return the loss summed over texts. Outputs: (texts, width)."""
        own, other = _both(outputs, teacher_outputs)
        losses = 1 - F.cosine_similarity(own, other, dim=-1)
        if len(own) > 1:
            errors = (similarities(own, own) - similarities(other, other)).square()
            losses = losses + self.similarity_weight * errors.sum(dim=1) / (len(own) - 1)
        if self.lengths:
            losses = losses + (own.norm(dim=-1) / other.norm(dim=-1).clamp(min=1e-6) - 1).square()
        return losses.sum()


@dataclass(frozen=True)
class ScoreDistillation:
    """The squared error of scores, and how far the order of documents of the same query is from the teacher's."""

    spread: float = 1.0
    """Standard deviation of the teacher's scores, in which errors are measured."""
    groups: Tensor | None = None
    """(training examples,) the number of each pair's query; None if there is nothing to put in order."""
    order_weight: float = 1.0

    @property
    def needs(self) -> Need:
        """The teacher's scores."""
        return Need.TEACHER

    def __call__(self, outputs: Outputs, batch: Batch, teacher_outputs: Outputs | None = None) -> Tensor:
        """Return the loss summed over pairs of texts. Outputs: (pairs, scores)."""
        own, other = (scores / self.spread for scores in _both(outputs, teacher_outputs))
        losses = (own - other).square().mean(dim=-1)
        if self.groups is not None and own.shape[-1] == 1:
            losses = losses + self.order_weight * self._order(own[:, 0], other[:, 0], batch)
        return losses.sum()

    def _order(self, own: Tensor, other: Tensor, batch: Batch) -> Tensor:
        """Return for each pair the mean divergence of which of two documents is better. own, other: (pairs,)."""
        assert self.groups is not None
        queries = self.groups[torch.tensor(batch.indices)].to(own.device)
        alike = queries[:, None] == queries[None, :]
        alike.fill_diagonal_(False)
        margins, wanted = own[:, None] - own[None, :], (other[:, None] - other[None, :]).sigmoid()
        crossed = F.binary_cross_entropy_with_logits(margins, wanted, reduction="none")
        # Less the entropy of the teacher's own preference, so that the loss of an equal student is 0.
        entropy = F.binary_cross_entropy(wanted, wanted, reduction="none")
        return ((crossed - entropy) * alike).sum(dim=1) / alike.sum(dim=1).clamp(min=1)


@dataclass(frozen=True)
class StateDistillation:
    """One minus the cosine of each token's state with the teacher's, and the relative error of its length."""

    @property
    def needs(self) -> Need:
        """The teacher's states."""
        return Need.TEACHER

    def __call__(self, outputs: Outputs, batch: Batch, teacher_outputs: Outputs | None = None) -> Tensor:
        """Return the mean over the tokens of a text, summed over texts. Outputs: (texts, longest, width)."""
        own, other = _both(outputs, teacher_outputs)
        lengths = own.norm(dim=-1) / other.norm(dim=-1).clamp(min=1e-6)
        losses = 1 - F.cosine_similarity(own, other, dim=-1) + (lengths - 1).square()
        mask = batch.mask
        means: Tensor = losses.masked_fill(~mask, 0.0).sum(dim=1) / mask.sum(dim=1).clamp(min=1)
        return means.sum()


def _both(outputs: Outputs, teacher_outputs: Outputs | None) -> tuple[Tensor, Tensor]:
    """Return what student and teacher say, in float32."""
    if teacher_outputs is None:
        raise InputError("this objective follows a dense model, and there is none; pass its outputs")
    return outputs.logits.float(), teacher_outputs.logits.float()
